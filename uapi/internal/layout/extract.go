package layout

import (
	"bytes"
	"debug/dwarf"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Extract returns these errors if this machine lacks a compiler or a header.
var (
	ErrNoCompiler = errors.New("no C compiler: install package gcc")
	ErrNoHeader   = errors.New("no such header")
)

// Source selects a part of the ABI and the headers that declare it.
type Source struct {
	Headers []string // as in #include <...>
	// Package is the distribution's package that contains the headers. Error messages name it.
	Package string
	// Want reports whether a table should contain a constant, struct or member. The enum is None for a macro, and for
	// an enumerator in an enum without a tag. A struct has no enum.
	Want func(kind Kind, enum, name string) bool
}

// KernelABI selects the kernel's part of the ABI.
var KernelABI = Source{
	Headers: []string{
		"rdma/ib_user_verbs.h",
		"rdma/ib_user_ioctl_verbs.h",
		"rdma/ib_user_ioctl_cmds.h",
		"rdma/rdma_user_ioctl.h",
		"rdma/rdma_user_ioctl_cmds.h",
		"rdma/rdma_user_rxe.h",
	},
	Package: "linux-libc-dev",
	// rdma_user_ioctl.h also contains the requests of one vendor's device.
	Want: func(_ Kind, _, name string) bool { return !strings.HasPrefix(name, "HFI1_") },
}

// VerbsABI selects the constants that only libibverbs defines for user space. The kernel defines them in an internal
// header.
var VerbsABI = Source{
	Headers: []string{"infiniband/verbs.h"},
	Package: "libibverbs-dev",
	Want: func(kind Kind, enum, name string) bool {
		return kind == Const && (slices.Contains(verbsEnums, enum) ||
			strings.HasPrefix(name, "IBV_LINK_LAYER_"))
	},
}

// EFAABI selects the driver-private ABI of EFA and the layout of its queues. The queue layout is in headers of
// rdma-core's provider; util/util.h has their macros.
var EFAABI = Source{
	Headers: []string{"util/util.h", "rdma/efa-abi.h", "efa_io_defs.h", "efa_io_regs_defs.h"},
	Package: "the sources of rdma-core",
	Want: func(_ Kind, _, name string) bool {
		return strings.HasPrefix(strings.ToLower(name), "efa_") && !strings.HasSuffix(name, "_H_")
	},
}

var verbsEnums = []string{
	"ibv_access_flags", "ibv_atomic_cap", "ibv_cq_attr_mask", "ibv_device_cap_flags",
	"ibv_event_type", "ibv_flow_attr_type", "ibv_flow_flags", "ibv_flow_spec_type",
	"ibv_mig_state", "ibv_mtu", "ibv_mw_type", "ibv_node_type", "ibv_port_cap_flags",
	"ibv_port_cap_flags2", "ibv_port_state", "ibv_qp_attr_mask", "ibv_qp_state", "ibv_qp_type",
	"ibv_rate", "ibv_rereg_mr_flags", "ibv_send_flags", "ibv_srq_attr_mask", "ibv_srq_type",
	"ibv_wc_flags", "ibv_wc_opcode", "ibv_wc_status", "ibv_wq_attr_mask", "ibv_wq_flags",
	"ibv_wq_state", "ibv_wq_type", "ibv_wr_opcode",
}

// macroPrefix marks an enumerator that represents a macro.
const macroPrefix = "verbena_macro_"

// Extract compiles the headers below the directory include, and returns the facts without header sets. Extract runs no
// program other than the compiler cc, and reads the facts from the compiler's debug information.
func Extract(cc, include string, src Source) (Table, error) {
	if _, err := exec.LookPath(cc); err != nil {
		return nil, fmt.Errorf("%w (%w)", ErrNoCompiler, err)
	}
	for _, h := range src.Headers {
		if _, err := os.Stat(filepath.Join(include, h)); err != nil {
			return nil, fmt.Errorf("%w: install package %s (%w)", ErrNoHeader, src.Package, err)
		}
	}
	macros, err := macroNames(cc, include, src)
	if err != nil {
		return nil, err
	}

	var prog strings.Builder
	writeIncludes(&prog, src)
	prog.WriteString("enum {\n")
	for _, m := range macros {
		fmt.Fprintf(&prog, "%s%s = (%s),\n", macroPrefix, m, m)
	}
	// Some compilers omit an unused enum. The program therefore uses the enum.
	fmt.Fprintf(&prog, "%send };\nint %sresult = %send;\n", macroPrefix, macroPrefix, macroPrefix)

	dir, err := os.MkdirTemp("", "layout")
	if err != nil {
		return nil, fmt.Errorf("make directory for compiler output: %w", err)
	}
	defer os.RemoveAll(dir)
	obj := filepath.Join(dir, "layout.o")
	_, err = runCompiler(cc, include, prog.String(), "-c", "-gdwarf-4",
		"-fno-eliminate-unused-debug-types", "-o", obj)
	if err != nil {
		return nil, err
	}
	f, err := elf.Open(obj)
	if err != nil {
		return nil, fmt.Errorf("read compiler output: %w", err)
	}
	defer f.Close()
	data, err := f.DWARF()
	if err != nil {
		return nil, fmt.Errorf("read debug information: %w", err)
	}
	return collectFacts(data, src)
}

// KernelVersion returns the kernel version of the headers below include, such as "6.1".
func KernelVersion(cc, include string) (string, error) {
	out, err := runCompiler(cc, include, "#include <linux/version.h>\n@LINUX_VERSION_CODE\n", "-E", "-P")
	if err != nil {
		return "", err
	}
	_, num, _ := strings.Cut(out, "@")
	code, err := strconv.Atoi(strings.TrimSpace(num))
	if err != nil {
		return "", fmt.Errorf("find kernel version below %s: %w", include, err)
	}
	return fmt.Sprintf("%d.%d", code>>16, code>>8&0xff), nil
}

func writeIncludes(b *strings.Builder, src Source) {
	for _, h := range src.Headers {
		fmt.Fprintf(b, "#include <%s>\n", h)
	}
}

// runCompiler runs cc on prog and returns its output.
func runCompiler(cc, include, prog string, args ...string) (string, error) {
	args = append(args, "-x", "c", "-I", include, "-")
	cmd := exec.Command(cc, args...)
	cmd.Stdin = strings.NewReader(prog)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", cc, strings.Join(args, " "), err, &errs)
	}
	return out.String(), nil
}

var (
	lineMarker = regexp.MustCompile(`^# \d+ "([^"]*)"`)
	// macroDef matches macros that are not empty and have no parameters
	macroDef = regexp.MustCompile(`^#define (\w+) +\S`)
)

// macroNames returns the names of the macros that the headers define with a value.
func macroNames(cc, include string, src Source) ([]string, error) {
	var prog strings.Builder
	writeIncludes(&prog, src)
	out, err := runCompiler(cc, include, prog.String(), "-E", "-dD")
	if err != nil {
		return nil, err
	}
	var names []string
	in := false
	for line := range strings.Lines(out) {
		if m := lineMarker.FindStringSubmatch(line); m != nil {
			in = src.declares(m[1])
		} else if m := macroDef.FindStringSubmatch(line); in && m != nil && src.Want(Const, None, m[1]) {
			names = append(names, m[1])
		}
	}
	return names, nil
}

// declares reports whether the file is one of the headers.
func (src *Source) declares(file string) bool {
	return slices.ContainsFunc(src.Headers, func(h string) bool {
		return strings.HasSuffix(file, "/"+h)
	})
}

// collectFacts collects the facts about the types that the headers declare.
func collectFacts(data *dwarf.Data, src Source) (Table, error) {
	var t Table
	var files []*dwarf.LineFile
	r := data.Reader()
	for {
		e, err := r.Next()
		if err != nil {
			return nil, fmt.Errorf("read debug information: %w", err)
		}
		if e == nil {
			slices.SortStableFunc(t, compareFacts)
			return t, nil
		}
		if e.Tag == dwarf.TagCompileUnit {
			lr, err := data.LineReader(e)
			if err != nil {
				return nil, fmt.Errorf("read debug information: %w", err)
			}
			files = lr.Files()
			continue
		}
		r.SkipChildren()

		isEnum := e.Tag == dwarf.TagEnumerationType
		if !isEnum && e.Tag != dwarf.TagStructType && e.Tag != dwarf.TagUnionType {
			continue
		}
		file, _ := e.Val(dwarf.AttrDeclFile).(int64)
		name, _ := e.Val(dwarf.AttrName).(string)
		here := file > 0 && int(file) < len(files) && src.declares(files[file].Name)
		typ, err := data.Type(e.Offset)
		if err != nil {
			return nil, fmt.Errorf("read debug information of %s: %w", name, err)
		}
		switch typ := typ.(type) {
		case *dwarf.EnumType:
			t = append(t, enumFacts(typ, here, src)...)
		case *dwarf.StructType:
			if here && name != "" && !typ.Incomplete && src.Want(Struct, "", name) {
				t = append(t, structFacts(name, typ)...)
			}
		}
	}
}

func enumFacts(typ *dwarf.EnumType, here bool, src Source) (t Table) {
	enum := typ.EnumName
	if enum == "" {
		enum = None
	}
	for _, v := range typ.Val {
		name, macro := strings.CutPrefix(v.Name, macroPrefix)
		if macro {
			if name == "end" {
				continue
			}
		} else if !here || !src.Want(Const, enum, name) {
			continue
		}
		t = append(t, Fact{Kind: Const, Name: name, Group: enum, Value: v.Val})
	}
	return t
}

func structFacts(tag string, typ *dwarf.StructType) Table {
	t := Table{{Kind: Struct, Name: tag, Size: typ.ByteSize}}
	group := None
	if typ.Kind == "union" {
		group = "u0"
	}
	unions := 1
	return append(t, memberFacts(tag, typ, 0, group, &unions)...)
}

// memberFacts lists the members of typ. typ is at offset off in the struct tag. Members of an unnamed struct or union
// belong to the enclosing struct, as in C. group is the enclosing unnamed union.
func memberFacts(tag string, typ *dwarf.StructType, off int64, group string, unions *int) (t Table) {
	for _, m := range typ.Field {
		name, at := tag+"."+m.Name, off+m.ByteOffset
		base := m.Type
		for {
			if td, ok := base.(*dwarf.TypedefType); ok {
				base = td.Type
				continue
			}
			break
		}
		inner, isStruct := base.(*dwarf.StructType)
		array, isArray := base.(*dwarf.ArrayType)
		switch {
		case m.Name == "" && isStruct:
			g := group
			if g == None && inner.Kind == "union" {
				g = fmt.Sprintf("u%d", *unions)
				*unions++
			}
			t = append(t, memberFacts(tag, inner, at, g, unions)...)
		case isArray && array.Count <= 0:
			t = append(t, Fact{Kind: Flex, Name: name, Off: at})
		case m.Type.Size() == 0:
			// The kernel declares an empty struct before a flexible array in a union.
		default:
			t = append(t, Fact{Kind: Field, Name: name, Off: at, Size: m.Type.Size(), Group: group})
			if isStruct && inner.StructName == "" {
				t = append(t, structFacts(name, inner)...)
			}
		}
	}
	return t
}
