package main

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// switchPackage is the directory of the package that combine adds to the module. Its functions select the mutant.
const switchPackage = "internal/mutantswitch"

// The environment variables of switchSource.
const (
	activeVariable  = "VERBENA_MUTANT"         // the number of the active mutant
	reachedVariable = "VERBENA_MUTANT_REACHED" // a file: its byte n becomes 1 when the place of mutant n is executed
)

const switchSource = `// Package mutantswitch selects one of the mutants that a binary contains.
package mutantswitch

import (
	"os"
	"strconv"
	"syscall"
)

type integer interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr
}

var active, _ = strconv.Atoi(os.Getenv("` + activeVariable + `"))

var reached = mapReached()

func mapReached() []byte {
	f, err := os.OpenFile(os.Getenv("` + reachedVariable + `"), os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		panic(err)
	}
	b, err := syscall.Mmap(int(f.Fd()), 0, int(st.Size()), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	return b
}

func On(n int) bool {
	if reached != nil {
		reached[n] = 1
	}
	return n == active
}

func Pick[T any](n int, a, b T) T {
	if On(n) {
		return b
	}
	return a
}

func Sum[T integer](n int, a, b T) T {
	if On(n) {
		return a - b
	}
	return a + b
}

func Difference[T integer](n int, a, b T) T {
	if On(n) {
		return a + b
	}
	return a - b
}
`

// guard describes the code of a mutant in a build that contains several mutants.
type guard struct {
	from, to int // the range of the source that form replaces
	// form returns the code. n is the number of the mutant. part returns a part of the range with the other mutants.
	form func(n string, part partFunc) string
}

type partFunc func(from, to int) string

// numberedMutant is a mutant of a combined build. Its number selects it.
type numberedMutant struct {
	*mutant
	number int
}

// combineFile returns the source of a file with several mutants. The text of a mutant is between two comments with
// its number.
func combineFile(source string, list []numberedMutant) string {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b numberedMutant) int {
		return cmp.Or(cmp.Compare(a.edit.guard.from, b.edit.guard.from), cmp.Compare(b.edit.guard.to, a.edit.guard.to))
	})
	var render func(from, to int, list []numberedMutant) string
	render = func(from, to int, list []numberedMutant) string {
		var out strings.Builder
		for i := 0; i < len(list); i++ {
			g := list[i].edit.guard
			if g.from < from || g.to > to {
				continue
			}
			inner := list[i+1:]
			n := strconv.Itoa(list[i].number)
			out.WriteString(source[from:g.from] + " /*<" + n + "*/" + // the space separates it from a division
				g.form(n, func(f, t int) string { return render(f, t, inner) }) + "/*" + n + ">*/")
			from = g.to
		}
		out.WriteString(source[from:to])
		return out.String()
	}
	text := render(0, len(source), list)
	clause := packageClausePattern.FindStringIndex(text)
	return text[:clause[1]] + `; import "` + modulePath + "/" + switchPackage + `"` + text[clause[1]:]
}

var packageClausePattern = regexp.MustCompile(`(?m)^package \w+`)

const modulePath = "verbena"

// build is the source of a module with several mutants.
type build struct {
	mutants []numberedMutant
	files   map[string]string // the replaced files
}

// combine returns a build with the mutants that have a guard and compile with the guard. rest are the others.
func combine(all []*mutant) (b *build, rest []*mutant, err error) {
	b = &build{}
	for _, m := range all {
		if m.edit == nil || m.edit.guard == nil {
			rest = append(rest, m)
			continue
		}
		b.mutants = append(b.mutants, numberedMutant{m, len(b.mutants) + 1})
	}
	for len(b.mutants) > 0 {
		if err := b.renderFiles(); err != nil {
			return nil, nil, err
		}
		bad, err := b.findInvalidMutants()
		if err != nil {
			return nil, nil, err
		}
		if len(bad) == 0 {
			break
		}
		b.mutants = slices.DeleteFunc(b.mutants, func(m numberedMutant) bool {
			if bad[m.number] {
				rest = append(rest, m.mutant)
			}
			return bad[m.number]
		})
	}
	return b, rest, nil
}

func (b *build) renderFiles() error {
	byFile := map[string][]numberedMutant{}
	for _, m := range b.mutants {
		byFile[m.file] = append(byFile[m.file], m)
	}
	b.files = map[string]string{switchPackage + "/switch.go": switchSource}
	for file, list := range byFile {
		source, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		b.files[file] = combineFile(string(source), list)
	}
	return nil
}

var (
	compileErrorPattern = regexp.MustCompile(`(?m)^(\S+\.go):(\d+)(?::(\d+))?: `)
	boundaryPattern     = regexp.MustCompile(`/\*(<?)(\d+)(>?)\*/`)
)

// findInvalidMutants compiles the packages with mutants, and returns the numbers of the mutants with compile errors.
func (b *build) findInvalidMutants() (map[int]bool, error) {
	dirs := map[string]bool{}
	for _, m := range b.mutants {
		dirs["./"+path.Dir(m.file)] = true
	}
	args := []string{"build", "-overlay", ""}
	for d := range dirs {
		args = append(args, d)
	}
	bad := map[int]bool{}
	err := withOverlay(b.files, func(dir, overlay string) error {
		args[2] = overlay
		c := exec.Command("go", args...)
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		out, err := c.CombinedOutput()
		if err == nil {
			return nil
		}
		for _, e := range compileErrorPattern.FindAllStringSubmatch(string(out), -1) {
			line, _ := strconv.Atoi(e[2])
			column, _ := strconv.Atoi(e[3])
			_, file, _ := strings.Cut(e[1], filepath.Base(dir)+"/")
			at := mutantsAt(b.files[file], line, column)
			if len(at) == 0 {
				at = mutantsAt(b.files[file], line, 0)
			}
			for _, n := range at {
				bad[n] = true
			}
		}
		if len(bad) == 0 {
			return fmt.Errorf("%w: %s", errBuild, out)
		}
		return nil
	})
	return bad, err
}

// mutantsAt returns the number of the innermost mutant at a place of a combined file. The compiler omits high columns.
// If column is 0, mutantsAt returns the numbers of all mutants of the line.
func mutantsAt(text string, line, column int) []int {
	start, end := 0, 0
	for l := range strings.Lines(text) {
		if start, end = end, end+len(l); line == 1 {
			break
		}
		line--
	}
	var open []int
	for _, x := range boundaryPattern.FindAllStringSubmatchIndex(text, -1) {
		begins := x[2] < x[3]
		switch {
		case column == 0 && begins && start <= x[0] && x[0] < end:
			n, _ := strconv.Atoi(text[x[4]:x[5]])
			open = append(open, n)
		case column == 0:
		case x[0] > start+column-1:
			return open[max(len(open)-1, 0):]
		case begins:
			n, _ := strconv.Atoi(text[x[4]:x[5]])
			open = append(open, n)
		default:
			open = open[:len(open)-1]
		}
	}
	return open
}
