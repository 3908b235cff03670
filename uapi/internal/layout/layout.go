// Package layout describes the layout of the RDMA user ABI, as a C compiler reports it: the size of each struct, the
// offset of each member, and the value of each constant.
//
// The tests compare package uapi with a Table. A Table is stored as a text file with one fact per line. Each fact names
// the header sets ("linux-6.1", "rdma-core-64") that contain the fact:
//
//	struct ib_uverbs_reg_mr_resp 12 linux-6.1,rdma-core-64
//	field ib_uverbs_reg_mr_resp.lkey 4 4 - linux-6.1,rdma-core-64
//	flex ib_uverbs_reg_mr_resp.driver_data 12 linux-6.1,rdma-core-64
//	const ib_uverbs_wr_opcode IB_UVERBS_WR_FLUSH 14 rdma-core-64
//
// The ABI only grows. An older header set lacks some facts. With few exceptions, it contradicts none. An exception is
// reserved space that became a field. In this case the table contains both facts, each with its own header sets.
package layout

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Kind is the kind of a Fact.
type Kind string

// The kinds of facts.
const (
	Struct Kind = "struct" // size of a struct, or of an unnamed struct inside another struct
	Field  Kind = "field"  // member of a struct
	Flex   Kind = "flex"   // flexible array at the end of a struct
	Const  Kind = "const"  // enumerator, or macro with a number as its value
)

// None is the group of a field that is not in an unnamed union, and the enum of a constant without an enum.
const None = "-"

// Fact is one property of the ABI.
type Fact struct {
	Kind Kind
	// Name is the name in C. The name of a member is preceded by the name of its struct and a dot. A struct without a
	// tag has the name of the member with this type.
	Name string
	// Group is the enclosing unnamed union of a Field, and the enum of a Const.
	Group string
	Size  int64 // in bytes, for Struct and Field
	Off   int64 // in bytes, for Field and Flex
	Value int64 // only for Const
	// Sets contains the header sets that have this fact, in sorted order.
	Sets []string
}

// Struct returns two names for a Field or Flex: the name of the struct and the name of the member.
func (f *Fact) Struct() (tag, member string) {
	i := strings.LastIndexByte(f.Name, '.')
	return f.Name[:max(i, 0)], f.Name[i+1:]
}

// sameFact reports whether f and g are the same fact, without regard to header sets.
func (f *Fact) sameFact(g *Fact) bool {
	return f.Kind == g.Kind && f.Name == g.Name && f.Group == g.Group &&
		f.Size == g.Size && f.Off == g.Off && f.Value == g.Value
}

// String returns the line of the fact in the text file.
func (f *Fact) String() string {
	s := string(f.Kind)
	switch f.Kind {
	case Struct:
		s += fmt.Sprintf(" %s %d", f.Name, f.Size)
	case Field:
		s += fmt.Sprintf(" %s %d %d %s", f.Name, f.Off, f.Size, f.Group)
	case Flex:
		s += fmt.Sprintf(" %s %d", f.Name, f.Off)
	case Const:
		s += fmt.Sprintf(" %s %s %d", f.Group, f.Name, f.Value)
	}
	if len(f.Sets) > 0 {
		s += " " + strings.Join(f.Sets, ",")
	}
	return s
}

// Table is a sorted list of facts.
type Table []Fact

// Sets returns the names of all header sets in t, sorted.
func (t Table) Sets() []string {
	var all []string
	for i := range t {
		all = append(all, t[i].Sets...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Lookup returns all facts with this kind and name. There may be none, one, or one for each group of header sets that
// disagree.
func (t Table) Lookup(kind Kind, name string) []Fact {
	var facts []Fact
	for i := range t {
		if t[i].Kind == kind && t[i].Name == name {
			facts = append(facts, t[i])
		}
	}
	return facts
}

// Merge returns a copy of t in which facts replaces the facts of the header set.
func (t Table) Merge(set string, facts Table) Table {
	var out Table
	for _, f := range t {
		f.Sets = slices.DeleteFunc(slices.Clone(f.Sets), func(s string) bool { return s == set })
		if len(f.Sets) > 0 {
			out = append(out, f)
		}
	}
	for _, f := range facts {
		i := slices.IndexFunc(out, func(g Fact) bool { return f.sameFact(&g) })
		if i < 0 {
			f.Sets = nil
			out = append(out, f)
			i = len(out) - 1
		}
		out[i].Sets = append(out[i].Sets, set)
		slices.Sort(out[i].Sets)
	}
	slices.SortStableFunc(out, compareFacts)
	return out
}

// Diff compares t with the facts of other headers. Diff returns three lists: the facts that contradict t, the facts of
// all header sets of t that the headers lack, and the facts that have no counterpart in t.
func (t Table) Diff(facts Table) (wrong, missing, unknown Table) {
	for i := range facts {
		known := t.Lookup(facts[i].Kind, facts[i].Name)
		switch {
		case len(known) == 0:
			unknown = append(unknown, facts[i])
		case !slices.ContainsFunc(known, func(f Fact) bool { return f.sameFact(&facts[i]) }):
			wrong = append(wrong, facts[i])
		}
	}
	sets := len(t.Sets())
	for i := range t {
		if len(t[i].Sets) == sets && len(facts.Lookup(t[i].Kind, t[i].Name)) == 0 {
			missing = append(missing, t[i])
		}
	}
	return wrong, missing, unknown
}

// compareFacts orders constants last and by enum, and orders other facts by struct and offset.
func compareFacts(a, b Fact) int {
	if c := cmp.Compare(btoi(a.Kind == Const), btoi(b.Kind == Const)); c != 0 {
		return c
	}
	if a.Kind == Const {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Value, b.Value),
			cmp.Compare(a.Name, b.Name))
	}
	return cmp.Or(cmp.Compare(a.structTag(), b.structTag()), cmp.Compare(kindRank(a.Kind), kindRank(b.Kind)),
		cmp.Compare(a.Off, b.Off), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Size, b.Size))
}

func (f *Fact) structTag() string {
	if f.Kind == Struct {
		return f.Name
	}
	tag, _ := f.Struct()
	return tag
}

func kindRank(k Kind) int { return slices.Index([]Kind{Struct, Field, Flex, Const}, k) }

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Write writes t in the format that Parse reads.
func (t Table) Write(w io.Writer) error {
	bw := bufio.NewWriter(w)
	fmt.Fprint(bw, "# Code generated by genlayout; DO NOT EDIT.\n"+
		"#\n"+
		"# struct NAME SIZE\n"+
		"# field STRUCT.MEMBER OFFSET SIZE UNNAMED-UNION\n"+
		"# flex STRUCT.MEMBER OFFSET\n"+
		"# const ENUM NAME VALUE\n"+
		"#\n"+
		"# each followed by the header sets that it holds for.\n")
	for i := range t {
		fmt.Fprintln(bw, t[i].String())
	}
	return bw.Flush()
}

// Parse reads a table.
func Parse(r io.Reader) (Table, error) {
	var t Table
	sc := bufio.NewScanner(r)
	for n := 1; sc.Scan(); n++ {
		words := strings.Fields(sc.Text())
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		f, err := parseFact(words)
		if err != nil {
			return nil, fmt.Errorf("layout table, line %d: %w", n, err)
		}
		t = append(t, f)
	}
	return t, sc.Err()
}

func parseFact(words []string) (Fact, error) {
	f := Fact{Kind: Kind(words[0])}
	want := map[Kind]int{Struct: 4, Field: 6, Flex: 4, Const: 5}[f.Kind]
	if want == 0 {
		return f, fmt.Errorf("unknown kind %q", words[0])
	}
	if len(words) != want {
		return f, fmt.Errorf("%s has %d words, want %d", f.Kind, len(words), want)
	}
	f.Name = words[1]
	f.Sets = strings.Split(words[want-1], ",")
	var err error
	num := func(w string) int64 {
		v, e := strconv.ParseInt(w, 10, 64)
		if err == nil {
			err = e
		}
		return v
	}
	switch f.Kind {
	case Struct:
		f.Size = num(words[2])
	case Field:
		f.Off, f.Size, f.Group = num(words[2]), num(words[3]), words[4]
	case Flex:
		f.Off = num(words[2])
	case Const:
		f.Group, f.Name, f.Value = words[1], words[2], num(words[3])
	}
	if (f.Kind == Field || f.Kind == Flex) && !strings.Contains(f.Name, ".") {
		return f, fmt.Errorf("%s %q names no struct", f.Kind, f.Name)
	}
	return f, err
}
