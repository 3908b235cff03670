// A program that reads the place of each adapter as topology code does (NCCL: the path of the device, the path by its bus,
// the class, the link speeds of the device and its bridge, the bridges up to the root, and the NUMA node of the last one).
// It prints a line for each adapter.
#include "verbs.h"

#include <dirent.h>
#include <limits.h>

static const char *read_line(const char *dir, const char *file)
{
	static char line[8][256];
	static int n;
	char path[PATH_MAX], *b = line[n++ % 8];
	snprintf(path, sizeof path, "%s/%s", dir, file);
	FILE *f = fopen(path, "r");
	if (!f || !fgets(b, 256, f))
		strcpy(b, "none");
	if (f)
		fclose(f);
	b[strcspn(b, "\n")] = 0;
	return b;
}

int main(void)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	CHECK(list);
	for (int i = 0; i < n; i++) {
		char path[PATH_MAX], bus[PATH_MAX], real[PATH_MAX], by_bus[PATH_MAX], driver[PATH_MAX];
		snprintf(path, sizeof path, "/sys/class/infiniband/%s/device", ibv_get_device_name(list[i]));
		CHECK(realpath(path, real));
		const char *id = strrchr(real, '/') + 1;
		CHECK(strlen(id) == 12);
		snprintf(bus, sizeof bus, "/sys/class/pci_bus/%.7s/../../%s", id, id);
		CHECK(realpath(bus, by_bus));
		CHECK(!strcmp(real, by_bus));
		snprintf(path, sizeof path, "%s/driver", real);
		CHECK(realpath(path, driver));
		printf("%s %s class %s vendor %s device %s numa %s driver %s speed %s, %s width %s path", ibv_get_device_name(list[i]),
			id, read_line(real, "class"), read_line(real, "vendor"), read_line(real, "device"), read_line(real, "numa_node"),
			strrchr(driver, '/') + 1, read_line(real, "max_link_speed"), read_line(real, "../max_link_speed"),
			read_line(real, "max_link_width"));
		// Bridges up to the root.
		for (char *slash; (slash = strrchr(real, '/')) && strlen(slash + 1) == 12; *slash = 0)
			printf(" %s", slash + 1);
		printf(" root %s\n", strrchr(real, '/') + 1);
		struct ibv_context *ctx = ibv_open_device(list[i]);
		CHECK(ctx);
		CHECK(!ibv_close_device(ctx));
	}
	ibv_free_device_list(list);
	return 0;
}
