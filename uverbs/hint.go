package uverbs

import (
	"fmt"

	"verbena/ib"
)

// Hint is a kind of value that is legal, and often a mistake of a program.
type Hint uint8

// The following constants are the kinds.
const (
	HintLinkLocalGID Hint = iota // the source GID is link-local
	HintPathMTU                  // the path MTU exceeds the port's active MTU
	HintNoTimeout                // the timeout code is 0, so a lost packet is not sent again
	NumHints
)

// Hinter is implemented by a Process that shows hints to its user.
type Hinter interface {
	// Hint is called each time a call has such a value, before the call returns. Hint may not sleep.
	Hint(h Hint, text string)
}

// hintAtModify passes the hints about the attributes of a queue pair to the process.
func (c *call) hintAtModify(t ib.QPType, a *ib.QPAttr, mask ib.QPAttrMask) {
	to, ok := c.f.proc.(Hinter)
	if !ok {
		return
	}
	d := c.f.dev.ib
	if mask&ib.QPAttrAV != 0 && a.AH.HasGRH {
		if text := describeLinkLocal(d, int(a.AH.Port), int(a.AH.GRH.SGIDIndex)); text != "" {
			to.Hint(HintLinkLocalGID, text)
		}
	}
	if mask&ib.QPAttrPathMTU != 0 && a.PathMTU.Valid() {
		p, err := d.QueryPort(max(int(a.AH.Port), 1))
		if err == nil && a.PathMTU > p.ActiveMTU {
			to.Hint(HintPathMTU, fmt.Sprintf("path MTU %v exceeds the active MTU %v of the port: set path_mtu to at most active_mtu",
				a.PathMTU, p.ActiveMTU))
		}
	}
	if mask&ib.QPAttrTimeout != 0 && a.Timeout == 0 && t == ib.QPTypeRC {
		to.Hint(HintNoTimeout, "timeout code 0 means no timeout: a lost packet is never sent again; 14 is usual")
	}
}

// describeLinkLocal returns a text if a GID is link-local and another one of the port is not, and otherwise "".
func describeLinkLocal(d *ib.Device, port, index int) string {
	e, err := d.QueryGID(port, index)
	if err != nil || !e.GID.Addr().IsLinkLocalUnicast() {
		return ""
	}
	p, err := d.QueryPort(port)
	if err != nil {
		return ""
	}
	for i := range p.GIDTableLen {
		o, err := d.QueryGID(port, i)
		if err == nil && !o.GID.IsZero() && !o.GID.Addr().IsLinkLocalUnicast() {
			return fmt.Sprintf("GID index %d is the link-local address %v; index %d is %v", index, e.GID.Addr(), i, o.GID.Addr())
		}
	}
	return ""
}
