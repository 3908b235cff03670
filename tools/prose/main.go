// Command prose checks the language of comments, pages, messages and names. The command is for contributors, and
// make lint runs it.
//
//	prose [-C folder]                 check the repository against tools/prose/todo.txt
//	prose [-C folder] path ...        list all findings in files and folders
//	prose [-C folder] -since REV      list the findings in the lines that have changed since a revision
//	prose [-C folder] -update-todo    lower the numbers of tools/prose/todo.txt
//	prose [-C folder] -commits RANGE  check the messages of commits
//	prose [-C folder] -rates [path]   count the findings of each rule per 1,000 sentences, in all or some files
//	prose -rules                      list the rules
//
// The command compares sentences with patterns of words and with lists of words. The command knows neither types
// nor grammar. Thus a sentence without findings can still be unclear. The command omits testdata, generated files,
// code blocks, code spans and quotations.
//
// tools/prose/todo.txt lists the packages and pages that are not rewritten yet, with their numbers of findings. The
// number of findings of a package must not grow, and a package outside the list must have no finding. -update-todo
// only lowers the numbers. To generate the file again after a change of the rules or of the name of a folder,
// remove the file first.
//
// tools/prose/exceptions.txt lists findings that are permitted, each with the reason.
//
// The exit code is 1 if there are findings (without arguments: more findings than tools/prose/todo.txt allows), and 2
// for an error.
package main

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	var o options
	flag.StringVar(&o.root, "C", ".", "root `folder` of the repository")
	flag.StringVar(&o.commits, "commits", "", "check the messages of the commits in a `range` of revisions")
	flag.StringVar(&o.since, "since", "", "list the findings in the lines that have changed since a `revision`")
	flag.BoolVar(&o.update, "update-todo", false, "lower the numbers in "+todoFile)
	flag.BoolVar(&o.rates, "rates", false, "count the findings of each rule per 1,000 sentences")
	flag.BoolVar(&o.rules, "rules", false, "list the rules")
	flag.Parse()
	o.paths = flag.Args()
	ok, err := run(o, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// options holds the options of the command.
type options struct {
	root, commits, since string
	update, rates, rules bool
	paths                []string
}

// run runs the command and reports whether there are no findings.
func run(o options, w io.Writer) (bool, error) {
	switch {
	case o.rules:
		listRules(w)
		return true, nil
	case o.commits != "":
		found, err := commits(o.root, o.commits)
		return list(w, found), err
	}
	r, err := examine(o)
	switch {
	case err != nil:
		return false, err
	case o.rates:
		listRates(w, r)
		return true, nil
	case o.since != "":
		found, err := since(o.root, o.since, r.findings)
		return list(w, found), err
	case len(o.paths) > 0:
		return list(w, r.findings), nil
	}
	return ratchet(o, r.findings, w)
}

// examine checks the paths in the options, or else the whole repository.
func examine(o options) (result, error) {
	var files []string
	for _, p := range o.paths {
		more, err := below(filepath.Join(o.root, p))
		if err != nil {
			return result{}, err
		}
		for _, name := range more {
			name, err := filepath.Rel(o.root, name)
			if err != nil {
				return result{}, err
			}
			files = append(files, filepath.ToSlash(name))
		}
	}
	if len(o.paths) == 0 {
		var err error
		if files, err = tracked(o.root); err != nil {
			return result{}, err
		}
	}
	exceptions, err := readExceptions(filepath.Join(o.root, exceptionsFile))
	if err != nil {
		return result{}, err
	}
	r, err := check(o.root, files)
	if err != nil {
		return result{}, err
	}
	r.findings = except(r.findings, exceptions)
	if len(o.paths) == 0 {
		err = unused(exceptions)
	}
	return r, err
}

// ratchet compares the findings of the repository with the recorded numbers and reports whether no number has
// grown.
func ratchet(o options, findings []finding, w io.Writer) (bool, error) {
	name := filepath.Join(o.root, todoFile)
	recorded, err := readTodo(name)
	if err != nil {
		return false, err
	}
	present := count(findings)
	if o.update {
		recorded = recorded.lower(present)
		if err := recorded.write(name); err != nil {
			return false, err
		}
	}
	grown := recorded.grown(present)
	for _, u := range grown {
		if recorded[u] == 0 {
			list(w, slices.DeleteFunc(slices.Clone(findings), func(f finding) bool { return unit(f.file) != u }))
		}
		fmt.Fprintf(w, "%s: got %d findings, %s allows %d\n", u, present[u], todoFile, recorded[u])
	}
	if len(grown) > 0 {
		fmt.Fprintln(w, "prose: reword the new sentences: bin/prose -since main lists the findings in changed lines")
	}
	if n := recorded.shrunk(present); n > 0 {
		fmt.Fprintf(w, "prose: fewer findings in %d packages or pages: run bin/prose -update-todo to lower their numbers\n",
			n)
	}
	return len(grown) == 0, nil
}

// list prints findings and reports whether the list is empty.
func list(w io.Writer, findings []finding) bool {
	for _, f := range findings {
		fmt.Fprintln(w, f)
	}
	return len(findings) == 0
}

// listRules prints the rules, each with some of its examples.
func listRules(w io.Writer) {
	for _, r := range rules {
		fmt.Fprintf(w, "%s: refuses %s; %s\n", r.name, r.refuses, r.instead)
		fmt.Fprintf(w, "\twrong: %q\n\tright: %q\n", r.wrong[0], r.right[0])
	}
}

// listRates prints the number of findings of each rule.
func listRates(w io.Writer, r result) {
	found := counts{}
	for _, f := range r.findings {
		found[f.rule]++
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		fmt.Fprintf(w, "%-10s %6d %6.2f\n", name, found[name], float64(found[name])*1000/float64(max(1, r.sentences)))
	}
	fmt.Fprintf(w, "%s %d\n", strings.Repeat(" ", 10), r.sentences)
}
