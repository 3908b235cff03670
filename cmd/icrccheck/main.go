// Icrccheck checks the ICRC of every RoCEv2 packet in captures.
//
//	icrccheck FILE...
//
// It reads pcap and pcapng files and prints "icrc good N bad M". Which frames are bad, and how many could not be
// checked, goes to standard error. The exit status is 0 if all are good, 1 if one is bad or there is none at all, and 2
// if a file cannot be read.
package main

import (
	"fmt"
	"io"
	"os"

	"verbena/internal/icrccheck"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(files []string, stdout, stderr io.Writer) int {
	if len(files) == 0 || files[0][:min(1, len(files[0]))] == "-" {
		fmt.Fprintln(stderr, "usage: icrccheck FILE...\n\n"+
			"Checks the ICRC of every RoCEv2 packet in pcap and pcapng files. Exit status: 0 all good, 1 a bad one or none, 2 unreadable file.")
		return 2
	}
	var all icrccheck.Result
	for _, name := range files {
		res, err := check(name)
		if err != nil {
			fmt.Fprintf(stderr, "icrccheck: %s: %v\n", name, err)
			return 2
		}
		for _, n := range res.BadFrames {
			fmt.Fprintf(stderr, "%s: frame %d: bad ICRC\n", name, n)
		}
		all.Add(res)
	}
	if all.Unchecked > 0 {
		fmt.Fprintf(stderr, "icrccheck: %d packets not checked: cut short or in fragments\n", all.Unchecked)
	}
	fmt.Fprintln(stdout, all)
	if !all.OK() {
		return 1
	}
	return 0
}

func check(name string) (icrccheck.Result, error) {
	f, err := os.Open(name)
	if err != nil {
		return icrccheck.Result{}, err
	}
	defer f.Close()
	return icrccheck.Check(f)
}
