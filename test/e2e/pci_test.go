//go:build e2e

package e2e

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// pciLinks returns the flags of three devices on two NUMA nodes.
func pciLinks() []string {
	return []string{
		"--link", "rxe0=" + unusedAddr() + ",pci,numa=0", "--link", "rxe1=" + unusedAddr() + ",pci,numa=1",
		"--link", "rxe2=" + unusedAddr() + ",pci=fffd:c2:00.0,numa=1,device=0x10f1,driver=rail,gen=5,width=8",
	}
}

// TestTopologyProgramsSeeAdapters tests that a program that reads sysfs like NCCL finds three adapters on two NUMA
// nodes, and that hwloc's lstopo shows them below bridges. The program can use the devices. The tree survives a reset.
func TestTopologyProgramsSeeAdapters(t *testing.T) {
	t.Parallel()
	program := buildWithLibibverbs(t, "topology")
	want := []string{
		"rxe0 ADDR class 0x020000 vendor 0x1af4 device 0x10f0 numa 0 driver rxe speed 16.0 GT/s PCIe, 16.0 GT/s PCIe width 16 path ADDR BRIDGE root ROOT",
		"rxe1 ADDR class 0x020000 vendor 0x1af4 device 0x10f0 numa 1 driver rxe speed 16.0 GT/s PCIe, 16.0 GT/s PCIe width 16 path ADDR BRIDGE root ROOT",
		"rxe2 fffd:c2:00.0 class 0x020000 vendor 0x1af4 device 0x10f1 numa 1 driver rail speed 32.0 GT/s PCIe, 32.0 GT/s PCIe width 8 path fffd:c2:00.0 fffd:c0:02.0 root pcifffd:c0",
	}
	automatic := regexp.MustCompile(`0000:([0-9a-f])([1-9a-f]):00\.0 (.*) path \S+ 0000:[0-9a-f]0:0[1-9a-f]\.0 root pci0000:[0-9a-f]0`)
	for _, u := range testUsers() {
		t.Run(u.name, func(t *testing.T) {
			w := startService(t, u, "", pciLinks()...)
			for range 2 {
				lines := strings.Split(strings.TrimSpace(w.mustRun("run", "--", program)), "\n")
				slices.Sort(lines)
				for i := range lines {
					lines[i] = automatic.ReplaceAllString(lines[i], "ADDR $3 path ADDR BRIDGE root ROOT")
				}
				if !slices.Equal(lines, want) {
					t.Errorf("adapters: got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
				}
				w.mustRun("dev", "reset", "rxe1")
			}
			if out := w.mustRun("link", "show"); !strings.Contains(out, "pci: fffd:c2:00.0,numa=1") {
				t.Errorf("link show: got %s, want the PCI function", out)
			}
			w.awaitNoProgramObjects()
		})
	}
	t.Run("lstopo", func(t *testing.T) {
		needProgram(t, "hwloc-nox", "lstopo")
		w := startService(t, testUsers()[0], "", pciLinks()...)
		out := w.mustRun("run", "--", "lstopo", "--of", "console", "--no-caches")
		adapters := regexp.MustCompile(`PCIBridge\n +PCI (\S+) \(Ethernet\)\n +OpenFabrics "(rxe[0-2])"`)
		if got := adapters.FindAllString(out, -1); len(got) != 3 {
			t.Errorf("adapters of lstopo: got %d, want 3, each below a bridge:\n%s", len(got), out)
		}
	})
}

// TestAttackPCIFiles tests that programs cannot write, replace or leave the PCI directories, that the directories show
// only the kernel's own functions beside those of the service, and that the kernel's functions look as without Verbena.
func TestAttackPCIFiles(t *testing.T) {
	t.Parallel()
	for _, u := range testUsers() {
		t.Run(u.name, func(t *testing.T) {
			w := startService(t, u, "", pciLinks()...)
			removal := ""
			if u.uid == 0 { // other programs own the files of their tree, which no other user sees
				removal = `rm -rf $d/../fffd:c2:00.0 /sys/bus/pci/drivers/rail/* /sys/class/pci_bus/fffd:c2 2>/dev/null
`
			}
			out := w.mustRun("run", "--", "sh", "-c", `
d=/sys/class/infiniband/rxe2/device
for f in $d/vendor $d/config $d/numa_node $d/enable $d/new /sys/bus/pci/devices/fffd:c2:00.0/remove /sys/bus/pci/drivers/rail/bind; do
  (echo 1 > $f) 2>/dev/null && echo "written: $f"
done
mkdir $d/new 2>/dev/null && echo "made: $d/new"
mv $d $d.old 2>/dev/null && echo "moved: $d"
ln -s /etc $d/link 2>/dev/null && echo "linked: $d/link"
`+removal+`cat $d/../../../../../etc/passwd 2>/dev/null | head -c 1
cat $d/vendor $d/numa_node
for x in /sys/devices/pcifffd:c0/nosuch /sys/bus/pci/devices/fffd:c2:00.0/nosuch /sys/bus/pci/drivers/rail/nosuch; do
  [ -e $x ] && echo "exists: $x"
done
echo "functions:"; ls /sys/bus/pci/devices
`)
			head, list, _ := strings.Cut(out, "functions:\n")
			if head != "0x1af4\n1\n" {
				t.Errorf("attacks: got\n%s, want only the vendor and the node", head)
			}
			var host []string
			entries, _ := os.ReadDir("/sys/bus/pci/devices")
			for _, e := range entries {
				host = append(host, e.Name())
			}
			functions := strings.Fields(list)
			if len(functions) != len(host)+6 {
				t.Errorf("functions: got %q, want the %d of this machine, and 3 adapters with their bridges", functions, len(host))
			}
			for _, name := range host {
				if !slices.Contains(functions, name) {
					t.Errorf("functions: got %q, want also %s of this machine", functions, name)
					continue
				}
				const files = "vendor device class modalias numa_node"
				dir := "/sys/bus/pci/devices/" + name
				got := w.mustRun("run", "--", "sh", "-c", "cd / && readlink "+dir+" && for f in "+files+"; do cat "+dir+"/$f; done")
				want, _ := os.Readlink(dir)
				want += "\n"
				for f := range strings.FieldsSeq(files) {
					b, err := os.ReadFile(dir + "/" + f)
					if err != nil {
						t.Fatal(err)
					}
					want += string(b)
				}
				if got != want {
					t.Errorf("%s: got %q, want %q as without Verbena", name, got, want)
				}
			}
			w.awaitNoProgramObjects()
		})
	}
}

// TestPCIShapeIsRefused tests that invalid PCI functions, and addresses and drivers in use, are refused on the command
// line and by a running service, with the reason.
func TestPCIShapeIsRefused(t *testing.T) {
	t.Parallel()
	w := startService(t, testUsers()[0], "", pciLinks()...)
	cases := map[string]string{
		"fffd:c2:00.0": "in use by link rxe2", "fffd:c0:02.0": "in use by link rxe2",
		"0000:81:00.0,driver=../x": "is not the name of a driver", "x": "is not a PCI address",
		"auto,numa=9999":      "not a NUMA node",
		"auto,vendor=0x12345": "is not a hexadecimal number", "auto,speed=1": "there is no option",
	}
	entries, _ := os.ReadDir("/sys/bus/pci/devices")
	if len(entries) > 0 {
		cases[entries[0].Name()] = "this machine has a PCI bus"
	}
	entries, _ = os.ReadDir("/sys/bus/pci/drivers")
	if len(entries) > 0 {
		cases["fffc:81:00.0,driver="+entries[0].Name()] = "this machine has a PCI driver"
	}
	for shape, says := range cases {
		cmd := w.verbenaCommand(w.contextWithTimeout(30), "link", "add", "rxe7", "--addr", unusedAddr(), "--pci", shape)
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), says) {
			t.Errorf("link add --pci %s: got %s and %v, want an error with %q", shape, out, err, says)
		}
	}
	if out := w.mustRun("link", "show"); strings.Contains(out, "rxe7") {
		t.Errorf("links: got %s, want none that was refused", out)
	}
}
