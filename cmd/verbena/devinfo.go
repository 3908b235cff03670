package main

import (
	"errors"
	"fmt"
	"io"

	"verbena/uapi"
	"verbena/verbs"
)

type devinfoCmd struct {
	Dev      string `arg:"" optional:"" help:"Name of the device; default: all." complete:"device"`
	Embedded bool   `help:"Describe a software device that this process creates."`
	Direct   bool   `name:"service" help:"Describe the devices of the running service, over its socket, even if this process sees other devices; the default if it sees none."`
	JSON     bool   `name:"json" help:"Print JSON."`
}

func (d *devinfoCmd) Help() string {
	return `Opens the devices that a program sees here, those of the kernel or, under "verbena run", of a service, and prints their
attributes with the names of ibv_devinfo -v. Where there are none it opens those of the running service over its socket. It needs
no library.

Examples:
  verbena devinfo
  verbena run -- verbena devinfo
  verbena devinfo --embedded`
}

// deviceReport is the description of a device that devinfo prints.
type deviceReport struct {
	Name     string       `json:"name"`
	Path     string       `json:"path"`
	Provider string       `json:"provider"`
	Attrs    []namedAttr  `json:"-"`
	Map      attrsByName  `json:"attributes"`
	Caps     []string     `json:"capabilities"`
	Ports    []portReport `json:"ports"`
}

// namedAttr is a named attribute; attributes have the order of ibv_devinfo.
type namedAttr struct {
	name string
	v    any
}

type attrsByName map[string]any

type portReport struct {
	Port       int         `json:"port"`
	State      string      `json:"state"`
	Phys       string      `json:"phys_state"`
	MaxMTU     int         `json:"max_mtu"`
	ActiveMTU  int         `json:"active_mtu"`
	LinkLayer  string      `json:"link_layer"`
	MaxMessage uint32      `json:"max_msg_sz"`
	GIDLen     int         `json:"gid_tbl_len"`
	PKeyLen    int         `json:"pkey_tbl_len"`
	Width      uint8       `json:"active_width"`
	Speed      uint16      `json:"active_speed"`
	GIDs       []gidReport `json:"gids"`
}

type gidReport struct {
	Index   int    `json:"index"`
	GID     string `json:"gid"` // the GID is not abbreviated, as in ibv_devinfo
	Type    string `json:"type"`
	Address string `json:"address"`
	Default bool   `json:"default"` // the default GID of programs that use package verbs
}

func (d *devinfoCmd) Run(c *cli) error {
	var reports []deviceReport
	if d.Embedded {
		f := deviceSelectionFlags{Embedded: true, Dev: d.Dev, Direct: d.Direct}
		dev, done, err := f.openDevice(c, "devinfo")
		if err != nil {
			return err
		}
		defer done()
		r, err := describeDevice(dev, "this process")
		if err != nil {
			return err
		}
		reports = append(reports, r)
	} else {
		list, err := findDevices(c, "devinfo", d.Dev, d.Direct)
		if err != nil {
			return err
		}
		for _, i := range list {
			r, err := func() (deviceReport, error) {
				dev, err := i.Open()
				if err != nil {
					return deviceReport{}, err
				}
				defer dev.Close()
				return describeDevice(dev, i.Path)
			}()
			if err != nil {
				return fmt.Errorf("devinfo: %w", err)
			}
			reports = append(reports, r)
		}
	}
	return printOutput(d.JSON, reports, func(w io.Writer) {
		for i := range reports {
			reports[i].write(w)
		}
	})
}

// describeDevice queries a device, its ports and its GIDs.
func describeDevice(dev *verbs.Device, path string) (r deviceReport, err error) {
	a, err := dev.Query()
	if err != nil {
		return r, err
	}
	r = deviceReport{
		Name: dev.Name(), Path: path, Provider: dev.Provider(), Caps: namesOfCapFlags(
			a.Caps), Map: attrsByName{}, Ports: []portReport{},
		Attrs: []namedAttr{
			{"fw_ver", fmt.Sprint(a.Firmware)}, {"node_guid", formatGUID(a.NodeGUID)}, {"sys_image_guid",
				formatGUID(a.SysImageGUID)},
			{"vendor_id", fmt.Sprintf("%#06x", a.VendorID)}, {"vendor_part_id", a.VendorPartID}, {"hw_ver",
				fmt.Sprintf("%#x", a.HWVersion)},
			{"phys_port_cnt", a.Ports}, {"max_mr_size", a.MaxMRSize}, {"max_qp", a.MaxQP}, {"max_qp_wr", a.MaxQPWR}, {"max_sge",
				a.MaxSGE},
			{"max_sge_rd", a.MaxSGERead}, {"max_cq", a.MaxCQ}, {"max_cqe", a.MaxCQE}, {"max_mr", a.MaxMR}, {"max_pd",
				a.MaxPD}, {"max_mw", a.MaxMW},
			{"max_qp_rd_atom", a.MaxQPReads}, {"max_qp_init_rd_atom", a.MaxQPInitReads}, {"atomic_cap",
				a.Atomics.String()}, {"max_ah", a.MaxAH},
			{"max_srq", a.MaxSRQ}, {"max_srq_wr", a.MaxSRQWR}, {"max_srq_sge", a.MaxSRQSGE}, {"max_mcast_grp",
				a.MaxMulticastGroups},
			{"max_pkeys", a.MaxPKeys}, {"odp", a.ODP},
		},
	}
	for _, x := range r.Attrs {
		r.Map[x.name] = x.v
	}
	gids, err := dev.GIDs()
	if err != nil {
		return r, err
	}
	for n := 1; n <= a.Ports; n++ {
		p, err := dev.QueryPort(n)
		if err != nil {
			return r, err
		}
		port := portReport{
			Port: n, State: p.State.String(), Phys: p.Phys.String(), MaxMTU: p.MaxMTU.Bytes(), ActiveMTU: p.ActiveMTU.Bytes(),
			LinkLayer: p.LinkLayer.String(), MaxMessage: p.MaxMessage, GIDLen: p.GIDs, PKeyLen: p.PKeys, Width: uint8(
				p.Width), Speed: uint16(p.Speed),
			GIDs: []gidReport{},
		}
		standard, err := dev.DefaultGID(n)
		if err != nil && !errors.Is(err, errNoAddress) {
			return r, err
		}
		for _, g := range gids {
			if g.Port == n {
				port.GIDs = append(port.GIDs, gidReport{
					Index: g.Index, GID: formatGID(g.GID), Type: g.Type.String(), Address: g.GID.String(), Default: err == nil &&
						g.Index == standard.Index,
				})
			}
		}
		r.Ports = append(r.Ports, port)
	}
	return r, nil
}

func (r *deviceReport) write(w io.Writer) {
	fmt.Fprintf(w, "hca_id:\t%s\n", replaceControlChars(r.Name))
	fmt.Fprintf(w, "  path:\t%s\n  provider:\t%s\n", replaceControlChars(r.Path), r.Provider)
	for _, a := range r.Attrs {
		fmt.Fprintf(w, "  %s:\t%v\n", a.name, a.v)
	}
	fmt.Fprintln(w, "  capabilities:")
	for _, c := range r.Caps {
		fmt.Fprintf(w, "    %s\n", c)
	}
	for _, p := range r.Ports {
		fmt.Fprintf(w, "  port:\t%d\n", p.Port)
		for _, a := range []namedAttr{
			{"state", p.State}, {"phys_state", p.Phys}, {"max_mtu", p.MaxMTU}, {"active_mtu", p.ActiveMTU}, {"link_layer",
				p.LinkLayer},
			{"max_msg_sz", p.MaxMessage}, {"gid_tbl_len", p.GIDLen}, {"pkey_tbl_len", p.PKeyLen}, {"active_width",
				p.Width}, {"active_speed", p.Speed},
		} {
			fmt.Fprintf(w, "    %s:\t%v\n", a.name, a.v)
		}
		for _, g := range p.GIDs {
			mark := ""
			if g.Default {
				mark = ", the default"
			}
			fmt.Fprintf(w, "    GID[%d]:\t%s\t%s, %s%s\n", g.Index, g.GID, g.Address, g.Type, mark)
		}
	}
	fmt.Fprintln(w)
}

// formatGUID formats a GUID in the format of ibv_devinfo.
func formatGUID(v uint64) string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", v>>48, v>>32&0xffff, v>>16&0xffff, v&0xffff)
}

func formatGID(g verbs.GID) string {
	s := ""
	for i := 0; i < len(g); i += 2 {
		if i > 0 {
			s += ":"
		}
		s += fmt.Sprintf("%02x%02x", g[i], g[i+1])
	}
	return s
}

var capabilityNames = []struct {
	c    uapi.DeviceCapFlags
	name string
}{
	{uapi.DeviceBadPKeyCntr, "BAD_PKEY_CNTR"}, {uapi.DeviceBadQKeyCntr, "BAD_QKEY_CNTR"}, {uapi.DeviceUDAVPortEnforce,
		"UD_AV_PORT_ENFORCE"},
	{uapi.DevicePortActiveEvent, "PORT_ACTIVE_EVENT"}, {uapi.DeviceSysImageGUID,
		"SYS_IMAGE_GUID"}, {uapi.DeviceRCRNRNAKGen, "RC_RNR_NAK_GEN"},
	{uapi.DeviceSRQResize, "SRQ_RESIZE"}, {uapi.DeviceMemWindow, "MEM_WINDOW"}, {uapi.DeviceMemMgtExtensions,
		"MEM_MGT_EXTENSIONS"},
	{uapi.DeviceMemWindowType2B, "MEM_WINDOW_TYPE_2B"}, {uapi.DeviceFlushGlobal,
		"FLUSH_GLOBAL"}, {uapi.DeviceFlushPersistent, "FLUSH_PERSISTENT"},
	{uapi.DeviceAtomicWrite, "ATOMIC_WRITE"},
}

// namesOfCapFlags returns the names of the flags. namesOfCapFlags combines flags without a name into one number.
func namesOfCapFlags(c uapi.DeviceCapFlags) []string {
	names := []string{}
	for _, n := range capabilityNames {
		if c&n.c != 0 {
			names = append(names, n.name)
			c &^= n.c
		}
	}
	if c != 0 {
		names = append(names, fmt.Sprintf("%#x", uint64(c)))
	}
	return names
}
