package main

import (
	"fmt"
	"io"
	"os"

	"verbena/capture"
)

type verifyCmd struct {
	Files []string `arg:"" name:"file" help:"Captures: pcap or pcapng, also compressed with gzip." complete:"file"`
}

func (*verifyCmd) Help() string {
	return `Wireshark and tshark dissect RoCEv2, but do not verify the invariant CRC (ICRC). This does, and prints "icrc good N bad M". Which
frames are bad, and how many could not be checked, goes to standard error.

Exit code: 0 if all are good, 1 if one is bad or there is none at all, 125 if a file cannot be read.`
}

func (v *verifyCmd) Run() error { return v.verifyFiles(os.Stdout, os.Stderr) }

func (v *verifyCmd) verifyFiles(stdout, stderr io.Writer) error {
	var all capture.Verification
	for _, name := range v.Files {
		res, err := verifyFile(name)
		if err != nil {
			return fmt.Errorf("capture verify: %w", err)
		}
		for _, n := range res.BadFrames {
			fmt.Fprintf(stderr, "%s: frame %d: bad ICRC\n", name, n)
		}
		all.Add(res)
	}
	if all.Unchecked > 0 {
		fmt.Fprintf(stderr, "verbena: capture verify: %d packets not checked: truncated or fragmented\n", all.Unchecked)
	}
	fmt.Fprintln(stdout, all)
	if !all.OK() {
		return exitCodeError(1)
	}
	return nil
}

func verifyFile(name string) (capture.Verification, error) {
	f, err := os.Open(name)
	if err != nil {
		return capture.Verification{}, err
	}
	defer f.Close()
	res, err := capture.Verify(f)
	if err != nil {
		return res, fmt.Errorf("%s: %w", name, err)
	}
	return res, nil
}
