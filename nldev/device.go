package nldev

// A Source supplies the data for the answers. Answer calls the Source for each request, and after each change that
// a request makes, on the caller's goroutine. Answer does not modify or keep the returned data. Calls of Answer may
// be concurrent, so a shared Source must be safe for concurrent use.
type Source interface {
	// Devices returns the registered devices, in any order. The answers are sorted by index. Indices and names must
	// be unique.
	Devices() []Device
	// ConnectionManager returns the device file of the connection manager, or false if there is none.
	// ConnectionManager's Name is "rdma_cm".
	ConnectionManager() (Chardev, bool)
}

// A Device holds the data that nldev.c reads from a struct ib_device.
type Device struct {
	Index        uint32 // chosen at registration, and unique while the device exists
	Name         string // at most 63 bytes, for instance "rxe0"
	NodeType     uint8  // enum rdma_node_type, 1 for a channel adapter
	NameByUser   bool   // the name was set when the link was added, so udev must not rename the device
	DIM          bool   // completion queues moderate their events (use_cq_dim)
	Protocol     string // protocol of the first port: "roce", "ib", "iw", "opa" or "usnic"; empty for any other protocol
	FWVer        string // firmware version, or empty if the device has none
	NodeGUID     uint64 // in host byte order
	SysImageGUID uint64 // in host byte order
	CapFlags     uint64 // ib_device_attr.device_cap_flags

	Ports []Port // port n is Ports[n-1]

	Uverbs   Chardev // the device file of user contexts; an empty Name means no file
	DriverID uint32  // enum rdma_driver_id, for instance 14 for rxe

	Resources Resources
	// Counters returns the hardware counters of a port by name. Ports are numbered from 1. A nil function means a
	// device without counters, and a nil map means a port without counters.
	Counters func(port uint32) map[string]uint64
}

// A Port holds the data that nldev.c reads from a port of a device.
type Port struct {
	State       uint8  // enum ib_port_state, 4 for active
	PhysState   uint8  // enum ib_port_phys_state, 5 for link up
	NetdevIndex uint32 // index of the network interface in the program's network namespace
	NetdevName  string // name of the network interface, or empty if the port has none

	// The following fields are reported only for the protocol "ib".
	CapFlags     uint64 // CapabilityMask, with CapabilityMask2 from bit 32 on
	SubnetPrefix uint64 // in host byte order
	LID, SMLID   uint32
	LMC          uint8
}

// validPort reports whether the device has the port. Mirrors rdma_is_port_valid.
func (d *Device) validPort(port uint32) bool {
	return port >= 1 && uint64(port) <= uint64(len(d.Ports))
}

// counters returns the counters of a valid port, or nil if the port has none.
func (d *Device) counters(port uint32) map[string]uint64 {
	if d.Counters == nil {
		return nil
	}
	return d.Counters(port)
}
