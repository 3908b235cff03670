package supervisor

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"verbena/internal/pci"
)

// The following constants are the directories of sysfs with PCI functions. The kernel's own functions stay visible in
// them.
const (
	sysDevices    = "/sys/devices"
	pciDevicesDir = "/sys/bus/pci/devices"
	pciDriversDir = "/sys/bus/pci/drivers"
	pciBusClass   = "/sys/class/pci_bus"
)

// pciDirectories lists the directories that this host may lack. The tree then contains them completely.
var pciDirectories = []string{"/sys/bus/pci", pciDevicesDir, pciDriversDir, pciBusClass}

// linkTo returns the target of a relative link in the directory from to a path. Both are below /sys.
func linkTo(from, path string) string {
	up := strings.Count(strings.TrimPrefix(from, "/sys/"), "/") + 1
	return strings.Repeat("../", up) + strings.TrimPrefix(path, "/sys/")
}

// addOwned adds an entry and marks it as owned: all paths from the entry on are virtual.
func (t treeEntries) addOwned(path string, e *treeEntry) {
	e.owned = true
	t.addEntry(path, e)
}

// addPCI adds the directories of a PCI function, its bridge and their buses, and returns the function's directory.
// (drivers/pci/pci-sysfs.c, pci_create_sysfs_dev_files, probe.c)
func (t treeEntries) addPCI(f *pci.Function) (dir string) {
	root := f.Address.Root()
	dir = sysDevices + "/pci" + root.BusName()
	t.addOwned(dir, &treeEntry{dir: true})
	t.addPCIBus(dir, root.BusName())
	if b, ok := f.UpstreamBridge(); ok {
		dir = t.addPCIFunction(dir, &b)
		t.addPCIBus(dir, f.Address.BusName())
	}
	dir = t.addPCIFunction(dir, f)
	for _, d := range pciDirectories {
		if _, ok := directoryInodeAt(d); !ok && t[d] != nil {
			t[d].owned = true
		}
	}
	return dir
}

// addPCIBus adds a bus below its root or bridge. (pcibus_class)
func (t treeEntries) addPCIBus(above, name string) {
	dir := above + "/pci_bus/" + name
	t.addEntry(dir, &treeEntry{dir: true})
	t.addEntry(dir+"/subsystem", &treeEntry{link: linkTo(dir, pciBusClass)})
	t.addOwned(pciBusClass+"/"+name, &treeEntry{link: linkTo(pciBusClass, dir)})
}

// addPCIFunction adds a function below the directory above, and returns its directory.
func (t treeEntries) addPCIFunction(above string, f *pci.Function) (dir string) {
	name := f.Address.String()
	dir = above + "/" + name
	t.addEntry(dir, &treeEntry{dir: true})
	for file, content := range f.Files() {
		t.addTextFile(dir+"/"+file, content)
	}
	t.addTextFile(dir+"/numa_node", fmt.Sprintf("%d\n", f.NUMA))
	mask, list := localCPUs(f.NUMA)
	t.addTextFile(dir+"/local_cpus", mask)
	t.addTextFile(dir+"/local_cpulist", list)
	t.addEntry(dir+"/subsystem", &treeEntry{link: linkTo(dir, "/sys/bus/pci")})
	t.addOwned(pciDevicesDir+"/"+name, &treeEntry{link: linkTo(pciDevicesDir, dir)})
	if f.Driver != "" {
		driver := pciDriversDir + "/" + f.Driver
		t.addOwned(driver, &treeEntry{dir: true})
		t.addEntry(driver+"/"+name, &treeEntry{link: linkTo(driver, dir)})
		t.addEntry(dir+"/driver", &treeEntry{link: linkTo(dir, driver)})
	}
	return dir
}

// localCPUs returns the processors of a NUMA node of this host, as a mask and as a list. For a node that this host
// lacks, it returns all processors. (Documentation/ABI/testing/sysfs-bus-pci)
func localCPUs(node int) (mask, list string) {
	if node >= 0 {
		dir := fmt.Sprintf("%s/system/node/node%d/", sysDevices, node)
		mask, list = readSysFile(dir+"cpumap"), readSysFile(dir+"cpulist")
	}
	if strings.Trim(mask, "0,\n") == "" || list == "" {
		n := runtime.NumCPU()
		return cpuMask(n) + "\n", fmt.Sprintf("0-%d\n", n-1)
	}
	return mask, list
}

// readSysFile returns the content of a file, or "" if it cannot be read.
func readSysFile(path string) string {
	const most = 64 << 10
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NOCTTY, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, most))
	return string(b)
}

// CheckPCI returns an error if this host has the root bus or the driver of a function: programs would no longer see the
// host's own. The error wraps EEXIST.
func CheckPCI(f *pci.Function) error {
	root := f.Address.Root().BusName()
	if HasPCIRoot(f.Address) {
		return fmt.Errorf("pci %v: this machine has a PCI bus %s: use another bus or domain: %w", f.Address, root,
			unix.EEXIST)
	}
	var st unix.Stat_t
	if f.Driver != "" && unix.Lstat(pciDriversDir+"/"+f.Driver, &st) == nil {
		return fmt.Errorf("pci %v: this machine has a PCI driver %s: use another name: %w", f.Address, f.Driver, unix.EEXIST)
	}
	return nil
}

// HasPCIRoot reports whether this host has the root bus of an address, or a bus with the name of the address's bus.
func HasPCIRoot(a pci.Address) bool {
	var st unix.Stat_t
	return unix.Lstat(sysDevices+"/pci"+a.Root().BusName(), &st) == nil ||
		unix.Lstat(pciBusClass+"/"+a.BusName(), &st) == nil || unix.Lstat(pciBusClass+"/"+a.Root().BusName(), &st) == nil
}
