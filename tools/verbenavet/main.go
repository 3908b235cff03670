// Command verbenavet checks programs that use verbena/ib against its locking contract, from their source: what may not
// sleep does not, callbacks come by the deferral, devices come and go where that is allowed, and locks are held where
// comments say so.
//
//	verbenavet [-C folder] [-v] [packages]
//
// looks at whole programs, and is exact. Each command among the packages is a program with all that it imports; the
// packages that no command imports are one more. It ends with 1 if there is something to report, with 2 if the packages
// cannot be loaded.
//
//	go vet -vettool=$(which verbenavet) [packages]
//
// looks at a package at a time, with what is known about functions of other packages; see docs/verbenavet.md for what
// that misses.
//
// docs/verbenavet.md explains each report, its rule and its remedy, and the comments that verbenavet reads.
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

const usage = `usage: verbenavet [-C folder] [-v] [packages]
       go vet -vettool=$(which verbenavet) [packages]

Checks programs that use verbena/ib against its locking contract, from their source.
packages are as for go list; without any: ./...
docs/verbenavet.md explains each report.

`

func main() {
	if byVet(os.Args[1:]) {
		unitchecker.Main(vet.Analyzer)
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// layered reports whether a folder is of the module that the layers are of.
func layered(dir string) bool {
	c := exec.Command("go", "list", "-m")
	c.Dir = dir
	out, err := c.Output()
	return err == nil && strings.TrimSpace(string(out)) == "verbena"
}

// byVet reports whether go vet has begun the command.
func byVet(args []string) bool {
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
	dir := flags.String("C", ".", "the folder of the module")
	verbose := flags.Bool("v", false, "list the escapes, and the calls that are not resolved")
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
	programs, err := vet.Load(*dir, patterns...)
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
			escapes[p.Place(x.Pos)+": "+x.Check+": "+x.Reason] = true
		}
		for pos, what := range p.Unresolved() {
			unresolved[p.Place(pos)+": "+what] = true
		}
	}
	if len(programs) > 0 {
		say(programs[0], vet.Unused(programs))
	}
	if layered(*dir) {
		imports, err := layers.Load(*dir, "")
		if err != nil {
			fmt.Fprintln(errs, "verbenavet:", err)
			return 2
		}
		for _, b := range layers.Check(imports) {
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
