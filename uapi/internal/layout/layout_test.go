package layout

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func mustParse(t *testing.T, text string) Table {
	t.Helper()
	table, err := Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// tableText returns the facts of t, one in a line, without the comment at the start.
func tableText(t *testing.T, table Table) string {
	t.Helper()
	var b strings.Builder
	if err := table.Write(&b); err != nil {
		t.Fatal(err)
	}
	i := strings.LastIndex(b.String(), "#")
	_, facts, _ := strings.Cut(b.String()[i:], "\n")
	return facts
}

func TestParseWrite(t *testing.T) {
	const in = `struct s 16 a,b
field s.x 0 4 - a,b
field s.y 8 8 u1 a
flex s.z 16 b
const e E_ONE 1 a
const - MINUS -1 b
`
	table := mustParse(t, "# comment\n\n"+in)
	want := Table{
		{Kind: Struct, Name: "s", Size: 16, Sets: []string{"a", "b"}},
		{Kind: Field, Name: "s.x", Group: None, Off: 0, Size: 4, Sets: []string{"a", "b"}},
		{Kind: Field, Name: "s.y", Group: "u1", Off: 8, Size: 8, Sets: []string{"a"}},
		{Kind: Flex, Name: "s.z", Off: 16, Sets: []string{"b"}},
		{Kind: Const, Name: "E_ONE", Group: "e", Value: 1, Sets: []string{"a"}},
		{Kind: Const, Name: "MINUS", Group: None, Value: -1, Sets: []string{"b"}},
	}
	if !slices.EqualFunc(table, want, func(f, g Fact) bool { return f.sameFact(&g) && slices.Equal(f.Sets, g.Sets) }) {
		t.Errorf("Parse: got %+v", table)
	}
	if got := tableText(t, table); got != in {
		t.Errorf("Write: got\n%s", got)
	}
	if tag, member := table[1].Struct(); tag != "s" || member != "x" {
		t.Errorf("Struct of s.x: got member %q of struct %q, want x of s", member, tag)
	}
}

func TestParseErrors(t *testing.T) {
	for _, line := range []string{
		"union u 4 a",
		"struct s a",
		"struct s four a",
		"field s.x 0 4 a",
		"field x 0 4 - a",
		"flex x 0 a",
		"const e ONE one a",
	} {
		if table, err := Parse(strings.NewReader("\n" + line)); err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("Parse(%q) = %v, %v", line, table, err)
		}
	}
}

func TestMergeReplacesHeaderSet(t *testing.T) {
	old := mustParse(t, `
struct s 8 a,b
field s.reserved 0 8 - a,b
const e GONE 7 b
const e SAME 1 a,b
`)
	// Header set b is new. In this set reserved is smaller, and x occupies the freed space.
	got := old.Merge("b", mustParse(t, `
struct s 8 -
field s.reserved 4 4 - -
field s.x 0 4 - -
const e SAME 1 -
const e NEW 2 -
`))
	const want = `struct s 8 a,b
field s.reserved 0 8 - a
field s.x 0 4 - b
field s.reserved 4 4 - b
const e SAME 1 a,b
const e NEW 2 b
`
	if text := tableText(t, got); text != want {
		t.Errorf("Merge: got\n%s", text)
	}
	if text := tableText(t, got.Merge("b", got)); !strings.Contains(text, "const e SAME 1 a,b\n") {
		t.Errorf("second Merge: got\n%s", text)
	}
	if sets := got.Sets(); !slices.Equal(sets, []string{"a", "b"}) {
		t.Errorf("Sets: got %v", sets)
	}
}

func TestDiffOfHeaders(t *testing.T) {
	table := mustParse(t, `
struct s 8 a,b
field s.reserved 0 8 - a
field s.reserved 4 4 - b
const e OLD 7 a
const e SAME 1 a,b
const e LOST 2 a,b
`)
	wrong, missing, unknown := table.Diff(mustParse(t, `
struct s 16 c
field s.reserved 4 4 - c
const e SAME 1 c
const e NEW 3 c
`))
	for _, test := range []struct {
		name string
		got  Table
		want string
	}{
		{"wrong", wrong, "struct s 16 c\n"},
		{"missing", missing, "const e LOST 2 a,b\n"},
		{"unknown", unknown, "const e NEW 3 c\n"},
	} {
		if got := tableText(t, test.got); got != test.want {
			t.Errorf("%s:\n%s", test.name, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("struct s 8 a,b\nfield s.x 0 8 - a\nconst e ONE 1 a\nflex s.y 8 a\n")
	f.Fuzz(func(t *testing.T, in string) {
		table, err := Parse(strings.NewReader(in))
		if err != nil {
			return
		}
		out := tableText(t, table)
		if again := tableText(t, mustParse(t, out)); again != out {
			t.Errorf("%q: got %[3]q from the second Write, want %[2]q as from the first", in, out, again)
		}
	})
}

// TestExtract checks the facts that a compiler reports for each construct in the kernel's headers.
func TestExtract(t *testing.T) {
	const header = `
#define GUARD
#define CALL(x) (x)
#define NUMBER (1u << 31)
#define OTHER 5
enum tag { TAG_A, TAG_B = 1ULL << 40, TAG_C = -1 };
enum { PLAIN = 3 };
union named { int i; char c[16]; };
struct undefined;
struct s {
	unsigned char a;                      /* and a hole */
	unsigned long long b;
	struct { int x, y; } inner;
	union { int one; struct { short two, three; }; };
	union { int four; } u;
	union named other;
	struct undefined *p;
	int tail[];
};
struct flexes {
	int n;
	union {
		struct { struct {} empty_f; char f[]; };
		struct { struct {} empty_g; int g[]; };
	};
};
struct zero { int n; int none[0]; };
struct other_s { int n; };
`
	const want = `struct flexes 4
field flexes.n 0 4 -
flex flexes.f 4
flex flexes.g 4
struct named 16
field named.c 0 16 u0
field named.i 0 4 u0
struct s 56
field s.a 0 1 -
field s.b 8 8 -
field s.inner 16 8 -
field s.one 24 4 u1
field s.two 24 2 u1
field s.three 26 2 u1
field s.u 28 4 -
field s.other 32 16 -
field s.p 48 8 -
flex s.tail 56
struct s.inner 8
field s.inner.x 0 4 -
field s.inner.y 4 4 -
struct s.u 4
field s.u.four 0 4 u0
struct zero 4
field zero.n 0 4 -
flex zero.none 4
const - PLAIN 3
const - NUMBER 2147483648
const tag TAG_C -1
const tag TAG_A 0
const tag TAG_B 1099511627776
`
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "rdma"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "rdma/test.h"), []byte(header), 0o644); err != nil {
		t.Fatal(err)
	}
	src := Source{
		Headers: []string{"rdma/test.h"},
		Package: "test-dev",
		Want:    func(_ Kind, _, name string) bool { return !strings.Contains(strings.ToLower(name), "other") },
	}
	table, err := Extract(cmp.Or(os.Getenv("CC"), "cc"), dir, src)
	if errors.Is(err, ErrNoCompiler) {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := tableText(t, table); got != want {
		t.Errorf("Extract: got\n%s", got)
	}
}

func TestExtractWithoutTools(t *testing.T) {
	if _, err := Extract("no-such-compiler", "/usr/include", KernelABI); !errors.Is(err, ErrNoCompiler) ||
		!strings.Contains(err.Error(), "install package gcc") {
		t.Errorf("Extract without a compiler: got %v, want ErrNoCompiler", err)
	}
	self, err := os.Executable() // any existing file, because the test does not run it
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Extract(self, t.TempDir(), KernelABI); !errors.Is(err, ErrNoHeader) ||
		!strings.Contains(err.Error(), "install package linux-libc-dev") {
		t.Errorf("Extract without headers: got %v, want ErrNoHeader with the package to install", err)
	}
}
