// Command genlayout writes a table with the layout of the RDMA user ABI. The C compiler determines the layout from the
// headers of this machine.
//
// An existing table is extended. The table keeps the facts of other header sets. To add the headers of another kernel,
// pass the directory that contains rdma/:
//
//	genlayout -o testdata/kernel.txt -include ~/rdma-core/kernel-headers -set rdma-core-64
//
// To add the constants of libibverbs, pass the directory that contains infiniband/. The default is the directory of
// package libibverbs-dev:
//
//	genlayout -verbs -o testdata/verbs.txt -set rdma-core-44
//
// To add the layout of EFA, pass a directory with rdma/, and with util/util.h and efa_io*_defs.h of rdma-core:
//
//	genlayout -efa -o efa/testdata/efa.txt -include DIR -set rdma-core-65
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"

	"verbena/uapi/internal/layout"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "genlayout:", err)
		os.Exit(1)
	}
}

func run() error {
	out := flag.String("o", "", "table to `write`")
	cc := flag.String("cc", "cc", "C compiler")
	include := flag.String("include", "/usr/include", "`directory` of the headers")
	set := flag.String("set", "", "`name` of the header set (default: linux- and the version that linux/version.h has)")
	verbs := flag.Bool("verbs", false, "take infiniband/verbs.h instead of the kernel's headers")
	efa := flag.Bool("efa", false, "take the headers of EFA instead of the kernel's headers")
	flag.Parse()
	if *out == "" || flag.NArg() > 0 {
		return errors.New("usage: genlayout [-verbs] [-cc CC] [-include DIR] [-set NAME] -o TABLE")
	}

	src := layout.KernelABI
	if *verbs {
		src = layout.VerbsABI
	}
	if *efa {
		src = layout.EFAABI
	}
	if *set == "" {
		if *verbs {
			return errors.New("infiniband/verbs.h has no version: pass one with -set")
		}
		v, err := layout.KernelVersion(*cc, *include)
		if err != nil {
			return err
		}
		*set = "linux-" + v
	}
	facts, err := layout.Extract(*cc, *include, src)
	if err != nil {
		return err
	}

	var table layout.Table
	old, err := os.ReadFile(*out)
	switch {
	case err == nil:
		if table, err = layout.Parse(bytes.NewReader(old)); err != nil {
			return fmt.Errorf("read %s: %w", *out, err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	var b bytes.Buffer
	if err := table.Merge(*set, facts).Write(&b); err != nil {
		return err
	}
	return os.WriteFile(*out, b.Bytes(), 0o644)
}
