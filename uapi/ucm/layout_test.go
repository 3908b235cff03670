package ucm

import (
	"cmp"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"verbena/uapi/internal/layout"
)

// TestStructsMatchHeaders checks that every struct has the size of the C struct in the headers, and the same members at
// the same offsets.
func TestStructsMatchHeaders(t *testing.T) {
	src := layout.Source{
		Headers: []string{"rdma/rdma_user_cm.h", "rdma/ib_user_sa.h", "rdma/ib_user_verbs.h"}, Package: "linux-libc-dev",
		Want: func(kind layout.Kind, _, _ string) bool { return kind != layout.Const },
	}
	table, err := layout.Extract(cmp.Or(os.Getenv("CC"), "cc"), "/usr/include", src)
	if errors.Is(err, layout.ErrNoCompiler) || errors.Is(err, layout.ErrNoHeader) {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		v    any
	}{
		{"rdma_ucm_cmd_hdr", Hdr{}}, {"rdma_ucm_create_id", CreateID{}}, {"rdma_ucm_create_id_resp", CreateIDResp{}},
		{"rdma_ucm_destroy_id", DestroyID{}}, {"rdma_ucm_destroy_id_resp", DestroyIDResp{}}, {"rdma_ucm_bind_ip", BindIP{}},
		{"rdma_ucm_bind", Bind{}}, {"rdma_ucm_resolve_ip", ResolveIP{}}, {"rdma_ucm_resolve_addr", ResolveAddr{}},
		{"rdma_ucm_resolve_route", ResolveRoute{}}, {"rdma_ucm_query", Query{}}, {"ib_user_path_rec", PathRec{}},
		{"rdma_ucm_query_route_resp", QueryRouteResp{}}, {"rdma_ucm_query_addr_resp", QueryAddrResp{}},
		{"rdma_ucm_query_path_resp", QueryPathResp{}}, {"ib_path_rec_data", PathRecData{}},
		{"rdma_ucm_conn_param", ConnParam{}},
		{"rdma_ucm_ud_param", UDParam{}}, {"rdma_ucm_ece", ECE{}}, {"rdma_ucm_connect", Connect{}},
		{"rdma_ucm_listen", Listen{}},
		{"rdma_ucm_accept", Accept{}}, {"rdma_ucm_reject", Reject{}}, {"rdma_ucm_disconnect", Disconnect{}},
		{"rdma_ucm_init_qp_attr", InitQPAttr{}}, {"rdma_ucm_notify", Notify{}}, {"rdma_ucm_join_ip_mcast", JoinIPMcast{}},
		{"rdma_ucm_join_mcast", JoinMcast{}}, {"rdma_ucm_get_event", GetEvent{}}, {"rdma_ucm_event_resp", EventResp{}},
		{"rdma_ucm_set_option", SetOption{}}, {"rdma_ucm_migrate_id", MigrateID{}}, {"rdma_ucm_migrate_resp", MigrateResp{}},
		{"ib_uverbs_qp_attr", QPAttr{}},
	} {
		typ := reflect.TypeOf(c.v)
		head := table.Lookup(layout.Struct, c.name)
		if len(head) != 1 {
			t.Errorf("no struct %s", c.name)
			continue
		}
		if int64(typ.Size()) != head[0].Size {
			t.Errorf("%s has %d bytes, %s %d", typ, typ.Size(), c.name, head[0].Size)
		}
		seen := 0
		for i := range typ.NumField() {
			f := typ.Field(i)
			for _, x := range table {
				tag, member := x.Struct()
				if x.Kind != layout.Field || tag != c.name || !strings.EqualFold(strings.ReplaceAll(member, "_", ""), f.Name) {
					continue
				}
				seen++
				if x.Off != int64(f.Offset) || x.Size != int64(f.Type.Size()) {
					t.Errorf("%s.%s: got offset %d and %d bytes, want those of C: %s", typ, f.Name, f.Offset, f.Type.Size(), &x)
				}
			}
		}
		if seen != typ.NumField() {
			t.Errorf("%s: got only %d of %d members with a counterpart in %s, want all", typ, seen, typ.NumField(), c.name)
		}
	}
}

// TestNewStructs checks the structs that older headers lack against the sizes and offsets of rdma-core 65.
func TestNewStructs(t *testing.T) {
	r, w := ResolveIBService{}, WriteCMEvent{}
	for _, c := range []struct {
		name      string
		got, want uintptr
	}{
		{"size of ResolveIBService", reflect.TypeOf(r).Size(), 88}, {"size of WriteCMEvent", reflect.TypeOf(w).Size(), 320},
		{"ServiceID", offsetOf(r, "ServiceID"), 8}, {"ServiceName", offsetOf(r, "ServiceName"), 16},
		{"Flags", offsetOf(r, "Flags"), 80}, {"Event", offsetOf(w, "Event"), 8}, {"Status", offsetOf(w, "Status"), 12},
		{"Param", offsetOf(w, "Param"), 16},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, c.got, c.want)
		}
	}
}

func offsetOf(v any, field string) uintptr {
	f, _ := reflect.TypeOf(v).FieldByName(field)
	return f.Offset
}
