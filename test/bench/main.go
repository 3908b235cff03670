// Command bench measures the figures of docs/results/benchmarks.md. The figures are Verbena's time for a message,
// the floor of the machine, and the times of alternatives for a user. The floor is the time of the shortest
// sequence of system calls for the same work, in C (test/bench/floor). Each round runs the measurements of a group
// one after another, and a ratio compares figures of one round. The output is Markdown. -json FILE writes all
// measurements.
//
//	bench [-short] [-rounds N] [-run REGEXP] [-json FILE]   make bench
//	bench -check                                            only check the floors
//	bench -base BINARY                                      make bench-compare: two binaries, alternately
//	bench -in-guest                                         make bench-guest: with the kernel's rxe, in a guest
//	bench -list                                             list the measurements
//
// The exit status is 0 on success. It is 1 if a measurement failed, if the run was interrupted, or if a floor is
// doubtful with -check. It is 2 for wrong flags.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

type options struct {
	verbena, base, baseName string
	root, json, run         string
	rounds                  int
	scale                   float64
	limit                   time.Duration
	short, check, guest     bool
	list                    bool
}

// measurementTimeout limits the time of a measurement.
const measurementTimeout = 30 * time.Second

func main() {
	log.SetFlags(0)
	log.SetPrefix("bench: ")
	var o options
	flag.StringVar(&o.verbena, "verbena", "bin/verbena", "measure this `binary`")
	flag.StringVar(&o.base, "base", "", "compare with this `binary`")
	flag.StringVar(&o.baseName, "base-name", "base", "`name` of the base in the output")
	flag.StringVar(&o.root, "root", ".", "`directory` of the module's source, for the floors")
	flag.StringVar(&o.json, "json", "", "write all measurements to this `file`")
	flag.StringVar(&o.run, "run", ".",
		"take only measurements with a section/group/name that matches this `regexp`, and their floors")
	flag.IntVar(&o.rounds, "rounds", 0, "number of rounds (default 5; with -short or -check 3, with -base 15)")
	flag.Float64Var(&o.scale, "scale", 1, "multiply the number of messages by this factor")
	flag.DurationVar(&o.limit, "limit", measurementTimeout, "limit the time of a single measurement")
	flag.BoolVar(&o.short, "short", false, "take only the short list: floors, some latencies and bandwidths, idle cost")
	flag.BoolVar(&o.check, "check", false, "only check the floors against each other")
	flag.BoolVar(&o.guest, "in-guest", false,
		"compare with the kernel's rxe0 on this machine, with Verbena in a separate network namespace")
	flag.BoolVar(&o.list, "list", false, "list the measurements")
	flag.Parse()
	if flag.NArg() > 0 || o.rounds < 0 || o.scale <= 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := o.runBench(ctx); err != nil {
		log.Fatal(err)
	}
}

func (o options) runBench(ctx context.Context) error {
	pattern, err := regexp.Compile(o.run)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	sections := fullRunSections()
	if o.guest {
		sections = guestSections()
	}
	if o.check {
		sections = []Section{floorSection()}
	}
	sections = filterSections(sections, pattern, o.short)
	if o.list {
		printSections(os.Stdout, sections)
		return nil
	}
	compared := slices.DeleteFunc(comparedExchanges(),
		func(c ComparedExchange) bool { return !pattern.MatchString(c.Name) })
	if o.base != "" && len(compared) == 0 || o.base == "" && len(sections) == 0 {
		return fmt.Errorf("-run %q matches no measurement: see -list", o.run)
	}
	if o.rounds == 0 {
		o.rounds = 5
		if o.short || o.check {
			o.rounds = 3
		}
		if o.base != "" {
			o.rounds = 15
		}
	}
	env, done, err := o.makeEnv(ctx)
	if err != nil {
		return err
	}
	defer done()
	header := newHeader(sourceRevision(ctx, env, o.root), o.rounds)
	if o.base != "" {
		return o.runCompare(ctx, env, compared, header)
	}
	runner := Runner{Env: env, Rounds: o.rounds, Log: os.Stderr}
	if o.guest {
		runner.Log = io.Discard // the guest's only console is for the figures
	}
	results, err := runner.Run(ctx, sections)
	header.LoadTo = loadAverage()
	if err != nil {
		header.Remark = fmt.Sprintf("**The run was ended after %d complete rounds.**", runner.Complete)
	}
	if o.guest {
		header.Remark += "Emulated processors (no KVM), and a kernel before 6.6, without SYNC_WAKE_UP: only ratios say something."
	}
	r := Report{Header: header, Checks: judgeChecks(floorChecks, results), Sections: results}
	r.Markdown(os.Stdout)
	err = errors.Join(err, writeFile(o.json, r.JSON))
	if n := len(listFailures(results)); n > 0 {
		err = errors.Join(err, fmt.Errorf("%d measurements failed; see the end of the output", n))
	}
	if n := countDoubtfulVerdicts(r.Checks); n > 0 {
		doubt := fmt.Errorf("%d of %d ratios between floors are doubtful: is the machine busy?", n, len(r.Checks))
		if o.check {
			return errors.Join(err, doubt)
		}
		log.Print(doubt)
	}
	return err
}

// makeEnv makes the Env of the binary, with built floors. done ends its processes and removes its files.
func (o options) makeEnv(ctx context.Context) (env *Env, done func(), err error) {
	dir, err := os.MkdirTemp("", "vbench")
	if err != nil {
		return nil, nil, err
	}
	binary, err := filepath.Abs(o.verbena)
	if err == nil {
		_, err = os.Stat(binary)
	}
	env = &Env{Verbena: binary, Dir: dir, Scale: o.scale, Limit: o.limit}
	if err == nil {
		if o.guest {
			err = env.enterNetNS(ctx)
		} else {
			err = env.buildFloors(ctx, o.root)
		}
	}
	if err != nil {
		os.RemoveAll(dir)
		return nil, nil, err
	}
	return env, func() {
		env.Close()
		os.RemoveAll(dir)
	}, nil
}

// enterNetNS makes a network namespace for Verbena, because the kernel's rxe uses port 4791 on all addresses of its
// own namespace.
func (e *Env) enterNetNS(ctx context.Context) error {
	const name = "vbench"
	for _, argv := range [][]string{{"ip", "netns", "add", name}, {"ip", "-n", name, "link", "set", "lo", "up"}} {
		if _, err := e.commandOutput(ctx, argv...); err != nil {
			return err
		}
	}
	e.Inside = []string{"nsenter", "--net=/run/netns/" + name, "--"}
	return nil
}

func (o options) runCompare(ctx context.Context, changed *Env, list []ComparedExchange, header Header) error {
	binary, err := filepath.Abs(o.base)
	if err != nil {
		return err
	}
	base := &Env{Verbena: binary, Dir: changed.Dir, Scale: o.scale, Limit: o.limit, Subnet: 1}
	defer base.Close()
	all, err := compareBinaries(ctx, base, changed, list, o.rounds, os.Stderr)
	header.LoadTo = loadAverage()
	r := CompareReport{header, o.baseName, all}
	r.Markdown(os.Stdout)
	return errors.Join(err, writeFile(o.json, func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", " ")
		return e.Encode(r)
	}))
}

func printSections(w io.Writer, sections []Section) {
	for _, s := range sections {
		for _, g := range s.Groups {
			for _, m := range g.Measurements {
				fmt.Fprintf(w, "%s/%s/%s\n", s.Name, g.Name, m.Name)
			}
		}
	}
}

// writeFile writes a file, unless its name is empty.
func writeFile(name string, content func(io.Writer) error) error {
	if name == "" {
		return nil
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(content(f), f.Close())
}

// sourceRevision returns the revision of the source, as reported by git.
func sourceRevision(ctx context.Context, e *Env, root string) string {
	out, err := e.commandOutput(ctx, "git", "-C", root, "describe", "--always", "--dirty", "--tags")
	if err != nil {
		return "an unknown revision"
	}
	return strings.TrimSpace(out)
}
