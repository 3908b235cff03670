// Command verbenavet checks the source of programs that use verbena/ib against the locking contract of the package.
// It checks that functions that may not sleep do not sleep, that only permitted functions make callbacks and
// register or remove devices, and that locks are held where comments require them.
//
//	verbenavet [-C folder] [-space] [-tests] [-v] [packages]
//
// The first form checks whole programs. Each command among the packages forms a program with all of its imports. The
// packages that no command imports form one more program. In the module verbena it also checks the layers of the
// packages. The exit code is 1 if there are reports, and 2 for wrong usage or if the packages cannot be loaded.
//
//	go vet -vettool=$(which verbenavet) [packages]
//
// The second form checks one package at a time, with facts about the functions of other packages. It finds fewer
// breaches.
//
// docs/verbenavet.md describes the limits of both forms. It explains each report, its rule and its remedy, and the
// comments that verbenavet reads.
package main

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/tools/go/analysis/unitchecker"

	"verbena/internal/layers"
	"verbena/tools/vet"
)

const usage = `usage: verbenavet [-C folder] [-space] [-tests] [-v] [packages]
       go vet -vettool=$(which verbenavet) [packages]

Checks programs that use verbena/ib against its locking contract, from their source.
packages are as for go list; without any: ./...
docs/verbenavet.md explains each report.

`

func main() {
	if startedByVet(os.Args[1:]) {
		unitchecker.Main(vet.Analyzer)
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// hasLayers reports whether a folder belongs to the module whose layers are checked.
func hasLayers(dir string) bool {
	c := exec.Command("go", "list", "-m")
	c.Dir = dir
	out, err := c.Output()
	return err == nil && strings.TrimSpace(string(out)) == "verbena"
}

// startedByVet reports whether go vet has started the command.
func startedByVet(args []string) bool {
	if len(args) == 0 {
		return false
	}
	last := args[len(args)-1]
	return strings.HasSuffix(last, ".cfg") || slices.Contains(args, "-flags") || strings.HasPrefix(args[0], "-V=")
}

func run(args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("verbenavet", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.Usage = func() {
		fmt.Fprint(errs, usage)
		flags.PrintDefaults()
	}
	dir := flags.String("C", ".", "check the module in this `folder`")
	tests := flags.Bool("tests", false, "check the test files, too: each test binary is a command")
	space := flags.Bool("space", false, "assume that a consumer's channels with a capacity have space for each send")
	verbose := flags.Bool("v", false, "list the escapes and the unresolved calls")
	switch err := flags.Parse(args); {
	case err == flag.ErrHelp:
		return 0
	case err != nil:
		return 2
	}
	patterns := flags.Args()
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	start := time.Now()
	programs, err := vet.Load(*dir, vet.Options{Tests: *tests, TrustSpace: *space}, patterns...)
	if err != nil {
		fmt.Fprintln(errs, "verbenavet:", err)
		return 2
	}
	loaded := time.Since(start)
	said, escapes, unresolved := map[string]bool{}, map[string]bool{}, map[string]bool{}
	say := func(p *vet.Program, list []vet.Report) {
		for _, r := range list {
			if head := p.Format(&r, false); !said[head] {
				said[head] = true
				fmt.Fprintln(out, p.Format(&r, true))
			}
		}
	}
	for _, p := range programs {
		say(p, p.Check())
		for _, x := range p.Escapes() {
			escapes[p.FormatPos(x.Pos)+": "+x.Check+": "+x.Reason] = true
		}
		for pos, what := range p.Unresolved() {
			unresolved[p.FormatPos(pos)+": "+what] = true
		}
	}
	if len(programs) > 0 {
		say(programs[0], vet.UnusedEscapes(programs))
	}
	if hasLayers(*dir) {
		imports, err := layers.LoadPackages(*dir, "")
		if err != nil {
			fmt.Fprintln(errs, "verbenavet:", err)
			return 2
		}
		imports = slices.DeleteFunc(imports, func(p layers.Package) bool {
			return !layers.HasLayer("verbena/" + p.ImportPath)
		})
		for _, b := range layers.CheckImports(imports) {
			said[b] = true
			fmt.Fprintln(out, "layers:", b)
		}
	}
	if *verbose {
		for _, what := range slices.Sorted(maps.Keys(escapes)) {
			fmt.Fprintln(out, "escape:", what)
		}
		for _, what := range slices.Sorted(maps.Keys(unresolved)) {
			fmt.Fprintln(out, "not resolved:", what)
		}
	}
	fmt.Fprintf(errs,
		"verbenavet: %d programs, %d reports, %d escapes, %d calls not resolved; %.1f s, %.1f s of it to load\n",
		len(programs), len(said), len(escapes), len(unresolved), time.Since(start).Seconds(), loaded.Seconds())
	if len(said) > 0 {
		return 1
	}
	return 0
}
