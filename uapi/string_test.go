package uapi

import (
	"strings"
	"testing"
)

// TestStringReturnsCNames checks the String methods that return names in C.
func TestStringReturnsCNames(t *testing.T) {
	for _, test := range []struct {
		table, enum, prefix string
		name                func(v int64) string
	}{
		{kernelTable, "ib_uverbs_write_cmds", "IB_USER_VERBS_CMD_", func(v int64) string { return Command(v).String() }},
		{kernelTable, "-", "IB_USER_VERBS_EX_CMD_", func(v int64) string {
			s, _ := strings.CutPrefix(ExCommand(v).String(), "EX_")
			return s
		}},
		{kernelTable, "ib_uverbs_wc_opcode", "IB_UVERBS_WC_", func(v int64) string { return WCOpcode(v).String() }},
		{kernelTable, "ib_uverbs_wr_opcode", "IB_UVERBS_WR_", func(v int64) string { return WROpcode(v).String() }},
		{kernelTable, "ib_uverbs_qp_type", "IB_UVERBS_QPT_", func(v int64) string { return QPType(v).String() }},
		{kernelTable, "ib_uverbs_srq_type", "IB_UVERBS_SRQT_", func(v int64) string { return SRQType(v).String() }},
		{kernelTable, "uverbs_default_objects", "UVERBS_OBJECT_", func(v int64) string { return ObjectID(v).String() }},
		{verbsTable, "ibv_qp_state", "IBV_QPS_", func(v int64) string { return QPState(v).String() }},
		{verbsTable, "ibv_mig_state", "IBV_MIG_", func(v int64) string { return MigState(v).String() }},
		{verbsTable, "ibv_port_state", "IBV_PORT_", func(v int64) string { return PortState(v).String() }},
		{verbsTable, "ibv_qp_attr_mask", "IBV_QP_", func(v int64) string { return QPAttrMask(v).String() }},
		{verbsTable, "ibv_send_flags", "IBV_SEND_", func(v int64) string { return SendFlags(v).String() }},
		{verbsTable, "ibv_wc_flags", "IBV_WC_", func(v int64) string { return IBVWCFlags(v).String() }},
		{verbsTable, "ibv_access_flags", "IBV_ACCESS_", func(v int64) string { return AccessFlags(v).String() }},
	} {
		n := 0
		for _, f := range newestFacts(readTable(t, test.table)) {
			want, ok := strings.CutPrefix(f.Name, test.prefix)
			if f.Group != test.enum || !ok || omittedConstants.MatchString(f.Name) {
				continue
			}
			n++
			if got := test.name(f.Value); got != want {
				t.Errorf("%s = %d: got the name %q", f.Name, f.Value, got)
			}
		}
		if n == 0 {
			t.Errorf("constants with prefix %s in enum %s: got none, want some", test.prefix, test.enum)
		}
	}
}

// TestMethodName checks the names of all methods. Each object type has its own enum for its methods.
func TestMethodName(t *testing.T) {
	enums := map[ObjectID]string{
		ObjectDevice:     "uverbs_methods_device",
		ObjectPD:         "uverbs_methods_pd",
		ObjectCQ:         "uverbs_methods_cq",
		ObjectQP:         "uverbs_methods_qp",
		ObjectSRQ:        "uverbs_methods_srq",
		ObjectAH:         "uverbs_methods_ah",
		ObjectMR:         "uverbs_methods_mr",
		ObjectMW:         "uverbs_methods_mw",
		ObjectFlow:       "uverbs_methods_flow",
		ObjectXRCD:       "uverbs_methods_xrcd",
		ObjectRWQIndTbl:  "uverbs_methods_rwq_ind_tbl",
		ObjectWQ:         "uverbs_methods_wq",
		ObjectFlowAction: "uverbs_methods_actions_flow_action_ops",
		ObjectDM:         "uverbs_methods_dm",
		ObjectCounters:   "uverbs_methods_actions_counters_ops",
		ObjectAsyncEvent: "uverbs_method_async_event",
		ObjectDMAH:       "uverbs_methods_dmah",
		ObjectDMABuf:     "uverbs_methods_dmabuf",
		ObjectCompCntr:   "uverbs_methods_comp_cntr",
	}
	table := newestFacts(readTable(t, kernelTable))
	for o, enum := range enums {
		n := 0
		for _, f := range table {
			if f.Group != enum {
				continue
			}
			n++
			if got, want := MethodName(o, MethodID(f.Value)), strings.TrimPrefix(f.Name, "UVERBS_METHOD_"); got != want {
				t.Errorf("name of method %d of %s: got %q, want %q", f.Value, o, got, want)
			}
		}
		if got, want := MethodName(o, MethodID(n)), o.String()+" MethodID("; n == 0 || !strings.HasPrefix(got, want) {
			t.Errorf("method name of %s after the last of %d methods: got %q, want a number", o, n, got)
		}
	}
	for _, f := range table {
		if strings.HasPrefix(f.Name, "UVERBS_METHOD_") {
			found := false
			for _, enum := range enums {
				found = found || f.Group == enum
			}
			if !found {
				t.Errorf("object of %s: got none, want one", f.Name)
			}
		}
	}
	if got, want := MethodName(99, 1), "ObjectID(99) MethodID(1)"; got != want {
		t.Errorf("MethodName(99, 1) = %q, want %q", got, want)
	}
}

// TestTextsAreUnique checks the String methods that do not return C names. Each value must have a text, and no two
// values may have the same text.
func TestTextsAreUnique(t *testing.T) {
	for _, test := range []struct {
		table, enum string
		name        func(v int64) string
	}{
		{verbsTable, "ibv_wc_status", func(v int64) string { return WCStatus(v).String() }},
		{verbsTable, "ibv_event_type", func(v int64) string { return EventType(v).String() }},
		{verbsTable, "ibv_node_type", func(v int64) string { return NodeType(v).String() }},
		{kernelTable, "ib_uverbs_gid_type", func(v int64) string { return GIDType(v).String() }},
	} {
		words := make(map[string]string)
		for _, f := range newestFacts(readTable(t, test.table)) {
			if f.Group != test.enum {
				continue
			}
			got := test.name(f.Value)
			if strings.Contains(got, "(") {
				t.Errorf("%s = %d: got the name %q", f.Name, f.Value, got)
			}
			if other := words[got]; other != "" {
				t.Errorf("%s and %s: got %q for both, want different texts", f.Name, other, got)
			}
			words[got] = f.Name
		}
		if len(words) == 0 {
			t.Errorf("constants in enum %s: got none, want some", test.enum)
		}
	}
}

func TestStringOfValues(t *testing.T) {
	for _, test := range []struct {
		got, want string
	}{
		{WCRecv.String(), "RECV"},
		{WCRecvRDMAWithImm.String(), "RECV_RDMA_WITH_IMM"},
		// a number after the last send opcode and before the first receive opcode
		{WCOpcode(100).String(), "WCOpcode(100)"},
		{Command(99).String(), "Command(99)"},
		{ExCommand(0).String(), "ExCommand(0)"},
		{QPType(5).String(), "QPType(5)"},
		{NodeUnknown.String(), "unknown"},
		{NodeType(-5).String(), "NodeType(-5)"},
		{AccessFlags(0).String(), "0"},
		{(AccessLocalWrite | AccessRemoteRead).String(), "LOCAL_WRITE|REMOTE_READ"},
		{(AccessLocalWrite | 1<<30 | 1<<12).String(), "LOCAL_WRITE|0x40001000"},
		{(WCFlagGRH | WCFlagWithInvalidate).String(), "GRH|WITH_INVALIDATE"},
		{IBVWCFlags(WCFlagGRH | WCFlagWithInvalidate).String(), "GRH|IP_CSUM_OK"}, // see WCFlags
		{LinkLayerEthernet.String(), "Ethernet"},
		{PortPhysLinkUp.String(), "LinkUp"},
		{AtomicGlob.String(), "GLOB"},
	} {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}
