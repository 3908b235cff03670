package uapi

import (
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"verbena/uapi/internal/layout"
)

// The next constants name the tables with which the tests compare the package, and the header set of each table that
// the package implements completely. This set is the newest one: kernel-headers and libibverbs of rdma-core v65.0.
const (
	kernelTable = "testdata/kernel.txt"
	verbsTable  = "testdata/verbs.txt"
	newestSet   = "rdma-core-65"
)

func readTable(t *testing.T, file string) layout.Table {
	t.Helper()
	f, err := os.Open(file)
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

// newestFacts returns the facts of the newest headers.
func newestFacts(table layout.Table) layout.Table {
	return slices.DeleteFunc(slices.Clone(table), func(f layout.Fact) bool {
		return !slices.Contains(f.Sets, newestSet)
	})
}

// goPackage is package uapi in the representation of the type checker.
type goPackage struct {
	scope *types.Scope
	docs  map[string]string // doc comments, by type name
}

// emptyImporter replaces the imported packages by empty packages. Neither struct layouts nor constants depend on their
// contents.
type emptyImporter struct{}

func (emptyImporter) Import(path string) (*types.Package, error) {
	if path == "unsafe" {
		return types.Unsafe, nil
	}
	p := types.NewPackage(path, filepath.Base(path))
	p.MarkComplete()
	return p, nil
}

func loadPackage(t *testing.T) goPackage {
	t.Helper()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	docs := make(map[string]string)
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
		for _, d := range f.Decls {
			if d, ok := d.(*ast.GenDecl); ok && d.Tok == token.TYPE && len(d.Specs) == 1 {
				docs[d.Specs[0].(*ast.TypeSpec).Name.Name] = d.Doc.Text()
			}
		}
	}
	conf := types.Config{
		Importer:         emptyImporter{},
		IgnoreFuncBodies: true,
		Error:            func(error) {}, // ignores errors from uses of the empty imports
	}
	pkg, _ := conf.Check("verbena/uapi", fset, files, nil)
	return goPackage{scope: pkg.Scope(), docs: docs}
}

// structTypes returns the struct types of the package.
func (p goPackage) structTypes() map[string]*types.Struct {
	all := make(map[string]*types.Struct)
	for _, name := range p.scope.Names() {
		if tn, ok := p.scope.Lookup(name).(*types.TypeName); ok && tn.Exported() {
			if s, ok := tn.Type().Underlying().(*types.Struct); ok {
				all[name] = s
			}
		}
	}
	return all
}

// foldName makes C and Go names comparable. For example, it converts both max_qp_wr and MaxQPWR to maxqpwr.
func foldName(name string) string {
	return strings.ToLower(strings.ReplaceAll(name, "_", ""))
}

// cStructPattern matches the name of the C struct in a doc comment: "(struct x)", or "(x.y)" for a struct without a
// tag.
var cStructPattern = regexp.MustCompile(`\((?:struct (\w+)|(\w+(?:\.\w+)+))\)`)

// TestStructs checks every struct of the package on every architecture. The struct must have the size of the C struct
// in its comment, and the same members at the same offsets.
func TestStructs(t *testing.T) {
	table := newestFacts(readTable(t, kernelTable))
	pkg := loadPackage(t)

	mirrors := make(map[string]string) // maps the name of a C struct to the name of its Go struct
	for name := range pkg.structTypes() {
		m := cStructPattern.FindStringSubmatch(strings.ReplaceAll(pkg.docs[name], "\n", " "))
		if m == nil {
			t.Errorf("comment of %s: got no C struct, want one", name)
			continue
		}
		mirrors[m[1]+m[2]] = name
	}
	if len(mirrors) != len(pkg.structTypes()) {
		t.Errorf("%d structs mirror %d C structs", len(pkg.structTypes()), len(mirrors))
	}

	for _, arch := range []string{"amd64", "arm64"} {
		t.Run(arch, func(t *testing.T) {
			sizes := types.SizesFor("gc", arch)
			for cname, name := range mirrors {
				checkStruct(t, table, sizes, cname, name, pkg.structTypes()[name])
			}
		})
	}

}

// membersOf returns the members of a C struct by folded name.
func membersOf(table layout.Table, cname string) map[string]layout.Fact {
	all := make(map[string]layout.Fact)
	for _, f := range table {
		if tag, member := f.Struct(); tag == cname && (f.Kind == layout.Field || f.Kind == layout.Flex) {
			all[foldName(member)] = f
		}
	}
	return all
}

func checkStruct(t *testing.T, table layout.Table, sizes types.Sizes, cname, name string, s *types.Struct) {
	head := table.Lookup(layout.Struct, cname)
	if len(head) != 1 {
		t.Errorf("%s: got no struct %s in the table, want one", name, cname)
		return
	}
	size := sizes.Sizeof(s)
	if size != head[0].Size {
		t.Errorf("%s has %d bytes, %s has %d", name, size, cname, head[0].Size)
	}

	var fields []*types.Var
	for f := range s.Fields() {
		fields = append(fields, f)
	}
	offsets := sizes.Offsetsof(fields)
	want := membersOf(table, cname)
	seen := make(map[string]bool)    // C members that have been compared, by folded name
	covered := make(map[string]bool) // unnamed unions
	end := int64(0)
	for i, f := range fields {
		off, n := offsets[i], sizes.Sizeof(f.Type())
		if off != end {
			t.Errorf("%s: implicit padding before %s", name, f.Name())
		}
		end = off + n
		if hasPointer(f.Type()) {
			t.Errorf("%s.%s contains a pointer", name, f.Name())
		}
		m, ok := want[foldName(f.Name())]
		switch {
		case ok && (m.Kind != layout.Field || m.Off != off || m.Size != n):
			t.Errorf("%s.%s: got offset %d and %d bytes, want those of C: %s", name, f.Name(), off, n, &m)
		case ok:
			seen[foldName(f.Name())] = true
			covered[m.Group] = true
		case f.Name() != "Pad" || overlapsField(want, off, n):
			t.Errorf("%s.%s is not in %s", name, f.Name(), cname)
		}
	}
	if end != size {
		t.Errorf("%s: got implicit padding at the end, want none", name)
	}
	for folded, m := range want {
		switch {
		case m.Kind == layout.Flex:
			if m.Off != size {
				t.Errorf("%s: got %d bytes, want as many as the offset of %s, %d", name, size, m.Name, m.Off)
			}
		case !seen[folded] && (m.Group == layout.None || !covered[m.Group]):
			t.Errorf("%s lacks %s", name, m.Name)
		}
	}
}

func overlapsField(members map[string]layout.Fact, off, n int64) bool {
	for _, m := range members {
		if m.Kind == layout.Field && m.Off < off+n && off < m.Off+m.Size {
			return true
		}
	}
	return false
}

// hasPointer reports whether t contains a type that Decode must not write. These types are pointers, and bool because
// not every byte is a valid bool.
func hasPointer(t types.Type) bool {
	switch u := t.Underlying().(type) {
	case *types.Basic:
		return u.Info()&types.IsInteger == 0 || u.Kind() == types.Uintptr ||
			u.Kind() == types.Int || u.Kind() == types.Uint
	case *types.Array:
		return hasPointer(u.Elem())
	case *types.Struct:
		for f := range u.Fields() {
			if hasPointer(f.Type()) {
				return true
			}
		}
		return false
	}
	return true
}

// goNames maps the start of a C name to the start of the Go name. The first rule with a matching enum and prefix
// applies. The empty string matches any enum.
var goNames = []struct{ enum, prefix, name string }{
	{"ibv_flow_spec_type", "IBV_FLOW_SPEC_", "FlowSpecType"},
	{"ibv_port_cap_flags", "IBV_PORT_", "PCF"},
	{"ibv_port_cap_flags2", "IBV_PORT_", "PCF2"},
	{"ibv_qp_attr_mask", "IBV_QP_", "QPAttr"},
	{"ibv_srq_attr_mask", "IBV_SRQ_", "SRQAttr"},
	{"ibv_wc_flags", "IBV_WC_", "IBVWC"},
	{"ib_uverbs_flow_action_esp_keymat", "IB_UVERBS_FLOW_ACTION_ESP_KEYMAT_", "FlowActionESPKeymatType"},
	{"ib_uverbs_flow_action_esp_replay", "IB_UVERBS_FLOW_ACTION_ESP_REPLAY_", "FlowActionESPReplayType"},
	{"", "IBV_QPT_XRC_SEND", "QPTXRCIni"}, // libibverbs has other names for the two XRC types
	{"", "IBV_QPT_XRC_RECV", "QPTXRCTgt"},
	{"", "IBV_RATE_2_5_GBPS", "Rate2500Mbps"},
	{"", "IBV_", ""},
	{"", "IB_USER_VERBS_", ""},
	{"", "IB_USER_", "User"},
	{"", "IB_UVERBS_", ""},
	{"", "IB_", ""},
	{"", "UVERBS_", ""},
	{"", "RDMA_", ""},
	{"", "RXE_", "RXE"},
}

// omittedConstants matches the C constants that the package omits.
var omittedConstants = regexp.MustCompile(`^(` + strings.Join([]string{
	`IB_IOCTL_MAGIC`,                       // old name of RDMA_IOCTL_MAGIC
	`_IBV_QP_\w+`,                          // used by the kernel's connection manager
	`IBV_\w+_RESERVED`,                     // the first undefined bit
	`IBV_\w+_SUPPORTED`,                    // all defined bits
	`IBV_\w+_DRIVER\d`,                     // for vendors, inside libibverbs only
	`IBV_WC_TM_(ADD|DEL|SYNC|RECV|NO_TAG)`, // defined only inside libibverbs
	`IBV_MTU_\d+`,                          // package roce defines these constants
	`IBV_DEVICE_INIT_TYPE`,                 // a bit that old kernels may set by accident
}, "|") + `)$`)

// kernelOnlyConstants matches the constants that no header for user space defines (include/rdma/ib_verbs.h,
// rxe_queue.c). TestKernelOnlyConstants and TestRXERingLayout check the values.
var kernelOnlyConstants = regexp.MustCompile(`^(WCFlag|QPT(SMI|GSI)$|PortPhys|PortWidth|PortSpeed|RXE(SendWQE|RecvWQE|CQE|Queue))`)

func goName(enum, cname string) string {
	for _, r := range goNames {
		if rest, ok := strings.CutPrefix(cname, r.prefix); ok && (r.enum == "" || r.enum == enum) {
			return foldName(r.name + rest)
		}
	}
	return foldName(cname)
}

// TestConstants checks that the package contains every constant of the C headers with the same name and value, and no
// other constants.
func TestConstants(t *testing.T) {
	pkg := loadPackage(t)
	consts := make(map[string]*types.Const) // by folded name
	for _, name := range pkg.scope.Names() {
		if c, ok := pkg.scope.Lookup(name).(*types.Const); ok && c.Exported() {
			if other := consts[foldName(name)]; other != nil {
				t.Errorf("constants %s and %s: got names that differ only in case, want a greater difference", other.Name(), name)
			}
			consts[foldName(name)] = c
		}
	}
	used := make(map[string]bool)
	for _, file := range []string{kernelTable, verbsTable} {
		for _, f := range newestFacts(readTable(t, file)) {
			if f.Kind != layout.Const || omittedConstants.MatchString(f.Name) {
				continue
			}
			c := consts[goName(f.Group, f.Name)]
			if c == nil {
				continue
			}
			used[foldName(c.Name())] = true
			if v, ok := constant.Int64Val(c.Val()); !ok || v != f.Value {
				t.Errorf("%s = %s, %s = %d", c.Name(), c.Val(), f.Name, f.Value)
			}
		}
	}
	for _, folded := range slices.Sorted(maps.Keys(consts)) {
		if c := consts[folded]; !used[folded] && !kernelOnlyConstants.MatchString(c.Name()) {
			t.Errorf("constant %s: got no counterpart in a C header, want one", c.Name())
		}
	}
}
