// Package qptable is the specification's table of queue pair transitions (IBA 11.2.5.2, tables 91 to 93). The table
// names states and attributes by strings and is written independently of the midlayer. Tests can therefore compare the
// midlayer and drivers with the table.
package qptable

import "strings"

// transitionRow holds the required and the optional attributes of a state transition for some service types.
type transitionRow struct {
	From, To           string
	Types              string // separated by spaces, like Required and Optional
	Required, Optional string
}

// Types lists all service types. DRIVER is SRD of EFA (srd_qp_state_table).
var Types = []string{"SMI", "GSI", "RC", "UC", "UD", "RAW_PACKET", "XRC_INI", "XRC_TGT", "DRIVER"}

// States lists all states, by number.
var States = []string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

// Attrs maps attributes to their bits in a mask (enum ib_qp_attr_mask). Every mask of a transition includes "state".
var Attrs = map[string]uint32{
	"state": 1 << 0, "cur": 1 << 1, "notify": 1 << 2, "access": 1 << 3, "pkey": 1 << 4, "port": 1 << 5, "qkey": 1 << 6,
	"av": 1 << 7, "mtu": 1 << 8, "timeout": 1 << 9, "retry": 1 << 10, "rnr_retry": 1 << 11, "rq_psn": 1 << 12,
	"rd_atom": 1 << 13, "alt": 1 << 14, "rnr_timer": 1 << 15, "sq_psn": 1 << 16, "dest_rd_atom": 1 << 17, "mig": 1 << 18,
	"cap": 1 << 19, "dest_qpn": 1 << 20, "rate": 1 << 25,
}

// transitionRows is the table. In addition to the rows, every state may move to RESET and to ERR without attributes.
var transitionRows = []transitionRow{
	{"RESET", "INIT", "UD DRIVER", "pkey port qkey", ""},
	{"RESET", "INIT", "SMI GSI", "pkey qkey", ""},
	{"RESET", "INIT", "RC UC XRC_INI XRC_TGT", "pkey port access", ""},
	{"RESET", "INIT", "RAW_PACKET", "port", ""},

	{"INIT", "INIT", "UD DRIVER", "", "pkey port qkey"},
	{"INIT", "INIT", "SMI GSI", "", "pkey qkey"},
	{"INIT", "INIT", "RC UC XRC_INI XRC_TGT", "", "pkey port access"},
	{"INIT", "INIT", "RAW_PACKET", "", ""},

	{"INIT", "RTR", "UD DRIVER SMI GSI", "", "pkey qkey"},
	{"INIT", "RTR", "UC XRC_INI", "av mtu dest_qpn rq_psn", "alt access pkey"},
	{"INIT", "RTR", "RC XRC_TGT", "av mtu dest_qpn rq_psn dest_rd_atom rnr_timer", "alt access pkey"},
	{"INIT", "RTR", "RAW_PACKET", "", ""},

	{"RTR", "RTS", "UD SMI GSI", "sq_psn", "cur qkey"},
	{"RTR", "RTS", "DRIVER", "sq_psn", "cur qkey rnr_retry"},
	{"RTR", "RTS", "UC", "sq_psn", "cur access alt mig"},
	{"RTR", "RTS", "RC", "timeout retry rnr_retry sq_psn rd_atom", "cur access alt mig rnr_timer"},
	{"RTR", "RTS", "XRC_INI", "timeout retry rnr_retry sq_psn rd_atom", "cur access alt mig"},
	{"RTR", "RTS", "XRC_TGT", "timeout sq_psn", "cur access alt mig rnr_timer"},
	{"RTR", "RTS", "RAW_PACKET", "", "rate"},

	{"RTS", "RTS", "UD DRIVER SMI GSI", "", "cur qkey"},
	{"RTS", "RTS", "UC XRC_INI", "", "cur access alt mig"},
	{"RTS", "RTS", "RC XRC_TGT", "", "cur access alt mig rnr_timer"},
	{"RTS", "RTS", "RAW_PACKET", "", "rate"},

	{"RTS", "SQD", "UD DRIVER SMI GSI UC RC XRC_INI XRC_TGT RAW_PACKET", "", "notify"},

	{"SQD", "RTS", "UD DRIVER SMI GSI", "", "cur qkey"},
	{"SQD", "RTS", "UC XRC_INI", "", "cur access alt mig"},
	{"SQD", "RTS", "RC XRC_TGT", "", "cur access alt mig rnr_timer"},
	{"SQD", "RTS", "RAW_PACKET", "", ""},

	{"SQD", "SQD", "UD DRIVER SMI GSI", "", "pkey qkey"},
	{"SQD", "SQD", "UC", "", "av alt access pkey mig"},
	{"SQD", "SQD", "RC", "", "port av timeout retry rnr_retry rd_atom dest_rd_atom alt access pkey rnr_timer mig"},
	{"SQD", "SQD", "XRC_INI", "", "port av timeout retry rnr_retry rd_atom alt access pkey mig"},
	{"SQD", "SQD", "XRC_TGT", "", "port av timeout dest_rd_atom alt access pkey rnr_timer mig"},
	{"SQD", "SQD", "RAW_PACKET", "", ""},

	{"SQE", "RTS", "UD DRIVER SMI GSI", "", "cur qkey"},
	{"SQE", "RTS", "UC", "", "cur access"},
	{"SQE", "RTS", "RC XRC_INI XRC_TGT RAW_PACKET", "", ""},
}

// attrMask returns the mask of the attributes in names. attrMask panics on a name that is not in Attrs.
func attrMask(names string) (m uint32) {
	for _, n := range strings.Fields(names) {
		bit, ok := Attrs[n]
		if !ok {
			panic("no attribute " + n)
		}
		m |= bit
	}
	return m
}

// TransitionAttrs returns the required and the optional attributes of a transition. ok is false if the transition does
// not exist. The former state may be asserted ("cur") only if the table allows it and the former state is RTR, RTS, SQD
// or SQE.
func TransitionAttrs(from, to, kind string) (required, optional uint32, ok bool) {
	if to == "RESET" || to == "ERR" {
		return 0, 0, true
	}
	for _, r := range transitionRows {
		if r.From == from && r.To == to {
			for _, t := range strings.Fields(r.Types) {
				if t == kind {
					return attrMask(r.Required), attrMask(r.Optional), true
				}
			}
		}
	}
	return 0, 0, false
}

// IsMaskAllowed reports whether a mask suits a transition. The mask need not include "state".
func IsMaskAllowed(from, to, kind string, mask uint32) bool {
	required, optional, ok := TransitionAttrs(from, to, kind)
	return ok && mask&required == required && mask&^(required|optional|Attrs["state"]) == 0
}
