package supervisor

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"verbena/ib"
	"verbena/internal/pci"
	"verbena/rdmacm/ucma"
	"verbena/uapi"
	"verbena/uapi/ucm"
	"verbena/uverbs"
)

// The following constants are the device numbers of the command files. (IB_UVERBS_MAJOR, IB_UVERBS_BASE_MINOR)
const (
	verbsMajor  = 231
	baseMinor   = 192
	majorPrefix = "231:"
	devChar     = "/dev/char/" + majorPrefix
	sysDevChar  = "/sys/dev/char/" + majorPrefix
)

// miscMajor and cmMinor are the device number of rdma_cm. The kernel would assign that number dynamically. (MISC_MAJOR)
const (
	miscMajor = 10
	cmMinor   = 122
	cmNumber  = "10:122"
)

// The following constants are the names of rdma_cm outside of /dev.
const (
	cmClass        = "/sys/class/misc/rdma_cm"
	maxBacklogFile = "/proc/sys/net/rdma_ucm/max_backlog"
)

const (
	devDir   = "/dev/infiniband"
	ibDir    = "/sys/class/infiniband"
	verbsDir = "/sys/class/infiniband_verbs"
	// virtualDir is the target directory of the links above, and of the links in /sys/class/misc.
	virtualDir = "/sys/devices/virtual"
)

// addClass adds the directory of a device of a class below the directory above, and the link to the directory in the
// class. (device_add_class_symlinks)
func (t treeEntries) addClass(above, class, name string, id any) (dir string) {
	dir = above + "/" + class + "/" + name
	t.addEntry(dir, &treeEntry{dir: true, id: id})
	inClass := "/sys/class/" + class
	t.addEntry(inClass+"/"+name, &treeEntry{link: linkTo(inClass, dir), id: id})
	t.addEntry(dir+"/subsystem", &treeEntry{link: linkTo(dir, inClass)})
	if above != virtualDir {
		t.addEntry(dir+"/device", &treeEntry{link: "../../../" + filepath.Base(above)})
	}
	return dir
}

// errEmptyGID is the error of reading the attribute of an empty entry of the GID table. libibverbs requires EINVAL.
var errEmptyGID = fmt.Errorf("the entry of the GID table is empty: %w", syscall.EINVAL)

// device is a device as reported by the server.
type device struct {
	name      string // name of the command file, such as uverbs0
	minor     int    // number of the command file, from 0
	ib        *ib.Device
	counters  uverbs.Counters                   // nil without counters
	files     map[string]func() (string, error) // files of the driver, by path below the device's directory
	pci       *pci.Function                     // nil without a PCI function
	driverID  uapi.DriverID
	driverABI int
	identity  any // distinguishes this device from other devices of the same name
	verbsABI  int
	stores    bool // programs post by stores to memory
}

func deviceOf(d *uverbs.Device) device {
	return device{name: d.Name(), minor: d.Minor(), ib: d.IB(), counters: d.Counters(), files: d.SysfsFiles(),
		driverID: d.DriverID(), driverABI: d.DriverABI(), verbsABI: d.ABIVersion(), identity: d,
		stores: d.StoreDoorbells()}
}

// makeDeviceEntries makes the entries of all devices. (core/sysfs.c, uverbs_main.c)
func makeDeviceEntries(devices []device, cm bool) treeEntries {
	t := make(treeEntries)
	if cm {
		addCMEntries(t)
	}
	for _, d := range []string{devDir, ibDir, verbsDir} {
		t.addEntry(d, &treeEntry{dir: true})
	}
	t.addTextFile(verbsDir+"/abi_version", fmt.Sprintf("%d\n", uapi.ABIVersion))
	for i := range devices {
		devices[i].addEntries(t)
	}
	return t
}

// addCMEntries makes the entries of the connection manager. (core/ucma.c)
func addCMEntries(t treeEntries) {
	t.addEntry(devDir+"/"+cmDevice, &treeEntry{node: &deviceNode{device: cmDevice, minor: cmMinor, cm: true}})
	t.addEntry("/dev/char/"+cmNumber, &treeEntry{link: "../infiniband/" + cmDevice})
	dir := t.addClass(virtualDir, "misc", cmDevice, nil)
	t.addTextFile(dir+"/abi_version", fmt.Sprintf("%d\n", ucm.ABIVersion))
	t.addTextFile(dir+"/dev", cmNumber+"\n")
	t.addTextFile(dir+"/uevent", fmt.Sprintf("MAJOR=%d\nMINOR=%d\nDEVNAME=infiniband/%s\nDEVMODE=0666\n", miscMajor,
		cmMinor,
		cmDevice))
	t.addEntry("/sys/dev/char/"+cmNumber, &treeEntry{link: "../../devices/virtual/misc/" + cmDevice})
	t.addTextFile(maxBacklogFile, fmt.Sprintln(ucma.MaxBacklog))
}

// nodeTypeOf returns the type of a device's node. For RoCE it is a channel adapter. (RDMA_NODE_IB_CA)
func nodeTypeOf(a *ib.DeviceAttr) ib.NodeType { return cmp.Or(a.NodeType, ib.NodeCA) }

// protocolOf returns the protocol of a device in answers to netlink; "" for none.
func protocolOf(a *ib.DeviceAttr) string {
	if nodeTypeOf(a) == ib.NodeUnspecified {
		return ""
	}
	return "roce"
}

func (d *device) addEntries(t treeEntries) {
	number := fmt.Sprintf("%d:%d", verbsMajor, baseMinor+d.minor)
	t.addEntry(devDir+"/"+d.name, &treeEntry{node: &deviceNode{device: d.name,
		minor: uint32(baseMinor + d.minor), stores: d.stores}})
	t.addEntry("/dev/char/"+number, &treeEntry{link: "../infiniband/" + d.name})

	above := virtualDir
	if d.pci != nil {
		above = t.addPCI(d.pci)
	}
	uv := t.addClass(above, "infiniband_verbs", d.name, d.identity)
	t.addTextFile(uv+"/dev", number+"\n")
	t.addTextFile(uv+"/ibdev", d.ib.Name()+"\n")
	t.addTextFile(uv+"/abi_version", fmt.Sprintf("%d\n", d.driverABI))
	t.addTextFile(uv+"/uevent", fmt.Sprintf("MAJOR=%d\nMINOR=%d\nDEVNAME=infiniband/%s\n", verbsMajor, baseMinor+d.minor,
		d.name))
	t.addEntry("/sys/dev/char/"+number, &treeEntry{link: linkTo("/sys/dev/char", uv)})

	dir := t.addClass(above, "infiniband", d.ib.Name(), d.identity)
	attr := func(name string, text func(a *ib.DeviceAttr) string) {
		t.addFile(dir+"/"+name, func() (string, error) {
			a, err := d.ib.QueryDevice()
			return text(&a) + "\n", err
		})
	}
	attr("node_type", func(a *ib.DeviceAttr) string { t := nodeTypeOf(a); return fmt.Sprintf("%d: %s", t, t) })
	t.addTextFile(dir+"/node_desc", d.ib.Name()+"\n")
	attr("node_guid", func(a *ib.DeviceAttr) string { return formatGUID(a.NodeGUID) })
	attr("sys_image_guid", func(a *ib.DeviceAttr) string { return formatGUID(a.SysImageGUID) })
	attr("fw_ver", func(a *ib.DeviceAttr) string {
		return fmt.Sprintf("%d.%d.%d", a.FWVer>>32, a.FWVer>>16&0xffff, a.FWVer&0xffff)
	})
	a, err := d.ib.QueryDevice()
	if err != nil {
		return
	}
	if d.pci == nil {
		d.addHostEntries(t, dir, dir+"/device")
	} else {
		d.addHostEntries(t, dir, above)
	}
	for port := 1; port <= a.PhysPorts; port++ {
		d.addPortEntries(t, fmt.Sprintf("%s/ports/%d", dir, port), port)
	}
	for _, name := range slices.Sorted(maps.Keys(d.files)) {
		if p := dir + "/" + name; t.isFree(p) {
			t.addFile(p, d.files[name])
		}
	}
}

// addHostEntries adds the entries about the location of a device: its network interface (rxe's parent attribute), and
// the mask of local processors, which contains all processors. A PCI function has its own mask. deviceDir is the
// directory of the hardware. (rxe's parent_show; Documentation/ABI/testing/sysfs-bus-pci)
func (d *device) addHostEntries(t treeEntries, dir, deviceDir string) {
	p, err := d.ib.QueryPort(1)
	if err != nil {
		return
	}
	if p.Netdev != "" {
		t.addTextFile(dir+"/parent", p.Netdev+"\n")
		t.addEntry(deviceDir+"/net/"+p.Netdev, &treeEntry{dir: true})
	}
	if d.pci == nil {
		mask, list := localCPUs(-1)
		t.addTextFile(deviceDir+"/numa_node", "-1\n")
		t.addTextFile(deviceDir+"/local_cpulist", list)
		t.addTextFile(deviceDir+"/local_cpus", mask)
	}
}

// cpuMask returns a mask of n processors in the kernel's format: groups of 32 bits, the highest first.
func cpuMask(n int) string {
	s := ""
	for ; n > 0; n -= 32 {
		s = fmt.Sprintf("%08x,", uint32(1<<min(n, 32)-1)) + s
	}
	return strings.TrimSuffix(s, ",")
}

// portAttributes lists the files of a port. (core/sysfs.c)
var portAttributes = map[string]func(a *ib.PortAttr) string{
	"state": func(a *ib.PortAttr) string { return fmt.Sprintf("%d: %s", a.State, a.State) },
	"phys_state": func(a *ib.PortAttr) string {
		return fmt.Sprintf("%d: %s", a.PhysState,
			physStateText(a.PhysState))
	},
	"rate":           rateText,
	"lid":            func(a *ib.PortAttr) string { return fmt.Sprintf("0x%x", a.LID) },
	"sm_lid":         func(a *ib.PortAttr) string { return fmt.Sprintf("0x%x", a.SMLID) },
	"sm_sl":          func(a *ib.PortAttr) string { return fmt.Sprint(a.SMSL) },
	"lid_mask_count": func(a *ib.PortAttr) string { return fmt.Sprint(a.LMC) },
	"cap_mask":       func(a *ib.PortAttr) string { return fmt.Sprintf("0x%08x", a.CapFlags) },
	"link_layer":     linkLayerText,
}

func (d *device) addPortEntries(t treeEntries, dir string, port int) {
	for name, text := range portAttributes {
		t.addFile(dir+"/"+name, func() (string, error) {
			a, err := d.ib.QueryPort(port)
			return text(&a) + "\n", err
		})
	}
	p, err := d.ib.QueryPort(port)
	if err != nil {
		return
	}
	gid := func(path string, text func(g *ib.GIDEntry) (string, error)) {
		read := func(i int) (string, error) {
			g, err := d.ib.QueryGID(port, i)
			if err != nil {
				return "", err
			}
			return text(&g)
		}
		t.addEntry(dir+"/"+path, &treeEntry{dir: true, table: &entryTable{n: p.GIDTableLen, read: read}})
	}
	gid("gids", func(g *ib.GIDEntry) (string, error) { return g.GID.String() + "\n", nil })
	gid("gid_attrs/types", func(g *ib.GIDEntry) (string, error) {
		switch {
		case g.GID.IsZero():
			return "", errEmptyGID
		case g.Type == ib.GIDTypeRoCEv2:
			return "RoCE v2\n", nil
		}
		return "IB/RoCE v1\n", nil
	})
	gid("gid_attrs/ndevs", func(g *ib.GIDEntry) (string, error) {
		if g.GID.IsZero() || g.Netdev == "" {
			return "", errEmptyGID
		}
		return g.Netdev + "\n", nil
	})
	for i := range p.PKeyTableLen {
		t.addFile(fmt.Sprintf("%s/pkeys/%d", dir, i), func() (string, error) {
			k, err := d.ib.QueryPKey(port, i)
			return fmt.Sprintf("0x%04x\n", k), err
		})
	}
	if c := d.counters; c != nil && port == 1 {
		for _, name := range slices.Sorted(maps.Keys(c.Stats())) {
			t.addFile(dir+"/hw_counters/"+name, func() (string, error) { return fmt.Sprintln(c.Stats()[name]), nil })
		}
	}
}

func formatGUID(g uint64) string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", g>>48, g>>32&0xffff, g>>16&0xffff, g&0xffff)
}

func physStateText(s uint8) string {
	names := [...]string{1: "Sleep", 2: "Polling", 3: "Disabled", 4: "PortConfigurationTraining", 5: "LinkUp",
		6: "LinkErrorRecovery", 7: "Phy Test"}
	if int(s) < len(names) && names[s] != "" {
		return names[s]
	}
	return "<unknown>"
}

func linkLayerText(a *ib.PortAttr) string {
	switch a.LinkLayer {
	case ib.LinkInfiniBand:
		return "InfiniBand"
	case ib.LinkEthernet:
		return "Ethernet"
	}
	return "Unknown"
}

// rateText returns width times speed. (rate_show, enum ib_port_speed, ib_width_enum_to_int)
func rateText(a *ib.PortAttr) string {
	lanes := map[uint8]int{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}[a.ActiveWidth]
	speed, ok := map[uint16]struct {
		name  string
		gbit2 int // speed of a link of width 1, in units of 0.5 Gb/s
	}{
		1: {" SDR", 5}, 2: {" DDR", 10}, 4: {" QDR", 20}, 8: {" FDR10", 20}, 16: {" FDR", 28}, 32: {" EDR", 50},
		64: {" HDR", 100}, 128: {" NDR", 200}, 256: {" XDR", 400},
	}[a.ActiveSpeed]
	if !ok {
		speed.name, speed.gbit2 = " SDR", 5
	}
	r, half := lanes*speed.gbit2, ""
	if r%2 != 0 {
		half = ".5"
	}
	return fmt.Sprintf("%d%s Gb/sec (%dX%s)", r/2, half, lanes, speed.name)
}
