package efa

import (
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"verbena/uapi"
	"verbena/uapi/internal/layout"
)

// facts returns the layout of the C headers.
func facts(t *testing.T) layout.Table {
	t.Helper()
	f, err := os.Open("testdata/efa.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	table, err := layout.Parse(f)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func folded(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "")) }

// TestStructs checks that every struct has the size of the C struct, and the same members at the same offsets.
func TestStructs(t *testing.T) {
	table := facts(t)
	for _, c := range []struct {
		name string
		v    any
	}{
		{"efa_ibv_alloc_ucontext_cmd", AllocUcontextCmd{}}, {"efa_ibv_alloc_ucontext_resp", AllocUcontextResp{}},
		{"efa_ibv_alloc_pd_resp", AllocPDResp{}}, {"efa_ibv_create_cq", CreateCQ{}},
		{"efa_ibv_create_cq_resp", CreateCQResp{}}, {"efa_ibv_create_qp", CreateQP{}},
		{"efa_ibv_create_qp_resp", CreateQPResp{}}, {"efa_ibv_create_ah_resp", CreateAHResp{}},
		{"efa_ibv_ex_query_device_resp", ExQueryDeviceResp{}}, {"efa_io_tx_meta_desc", TXMetaDesc{}},
		{"efa_io_tx_buf_desc", TXBufDesc{}}, {"efa_io_remote_mem_addr", RemoteMemAddr{}}, {"efa_io_rx_desc", RXDesc{}},
		{"efa_io_cdesc_common", CDescCommon{}}, {"efa_io_tx_cdesc", TXCDesc{}}, {"efa_io_rx_cdesc", RXCDesc{}},
		{"efa_io_rx_cdesc_ex", RXCDescEx{}},
	} {
		typ := reflect.TypeOf(c.v)
		head := table.Lookup(layout.Struct, c.name)
		if len(head) != 1 || int64(typ.Size()) != head[0].Size {
			t.Errorf("%s: got %d bytes, want those of struct %s: %v", typ, typ.Size(), c.name, head)
			continue
		}
		members := map[string]layout.Fact{}
		for _, f := range table {
			if tag, member := f.Struct(); tag == c.name && f.Kind == layout.Field {
				members[folded(member)] = f
			}
		}
		if len(members) != typ.NumField() {
			t.Errorf("%s: got %d members, want %d", typ, typ.NumField(), len(members))
		}
		for i := range typ.NumField() {
			f := typ.Field(i)
			if m := members[folded(f.Name)]; m.Off != int64(f.Offset) || m.Size != int64(f.Type.Size()) {
				t.Errorf("%s.%s: got offset %d and %d bytes, want those of C: %s", typ, f.Name, f.Offset, f.Type.Size(), &m)
			}
		}
	}
	for _, c := range []struct {
		name      string
		got, want int64
	}{
		{"efa_io_tx_wqe", TXWQESize, table.Lookup(layout.Struct, "efa_io_tx_wqe")[0].Size},
		{"efa_io_tx_wqe_128", TXWQE128Size, table.Lookup(layout.Struct, "efa_io_tx_wqe_128")[0].Size},
		{"efa_io_tx_wqe.data", TXWQEDataOffset, int64(uapi.SizeOf[TXMetaDesc]())},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, c.got, c.want)
		}
	}
}

// omitted matches the constants of C that no code here needs.
var omitted = regexp.MustCompile(`COMP_CNTR_|PROCESSING_HINT|IMM_DATA_SIZE|QUERY_MR_VALIDITY`)

// notInC matches the constants that no header defines.
var notInC = regexp.MustCompile(`^(abiversion|txwqe.*|unknownah)$`)

// TestConstants checks that the package contains every constant of the C headers with the same value, and no other.
func TestConstants(t *testing.T) {
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range []string{"efa.go", "io.go"} {
		f, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	conf := types.Config{Importer: uapiTypes{}, Error: func(error) {}}
	pkg, _ := conf.Check("efa", fset, files, nil)
	ours := map[string]int64{}
	for _, name := range pkg.Scope().Names() {
		if c, ok := pkg.Scope().Lookup(name).(*types.Const); ok {
			v, _ := constant.Int64Val(constant.ToInt(c.Val()))
			ours[folded(name)] = v
		}
	}
	for _, f := range facts(t) {
		if f.Kind != layout.Const || omitted.MatchString(f.Name) {
			continue
		}
		name := strings.TrimPrefix(folded(f.Name), "efa")
		if name = strings.Replace(name, "ioregs", "regs", 1); name == "uverbsabiversion" {
			name = "abiversion"
		}
		if v, ok := ours[name]; !ok || v != f.Value {
			t.Errorf("%s: got %d (defined: %v), want %d", f.Name, v, ok, f.Value)
		}
		delete(ours, name)
	}
	for name := range ours {
		if !notInC.MatchString(name) {
			t.Errorf("constant %s: got no counterpart in C, want one", name)
		}
	}
}

// uapiTypes imports package uapi with the types that the constants have.
type uapiTypes struct{}

func (uapiTypes) Import(path string) (*types.Package, error) {
	p := types.NewPackage(path, "uapi")
	for _, name := range []string{"MethodID", "AttrID"} {
		n := types.NewTypeName(token.NoPos, p, name, nil)
		types.NewNamed(n, types.Typ[types.Uint16], nil)
		p.Scope().Insert(n)
	}
	p.MarkComplete()
	return p, nil
}
