package main

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// cnpPacket is a congestion notification packet sent by a ConnectX-4 Lx.
const cnpPacket = "45c2003c718c400040119161" + "0a0011010a001201" + "000012b700280000" +
	"8100ffff4000011800000000" + "00000000000000000000000000000000" + "82fd002a"

func writeCaptureFile(t *testing.T, packets ...[]byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "x.pcap")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := pcapgo.NewWriter(f)
	if err := w.WriteFileHeader(1<<16, layers.LinkTypeRaw); err != nil {
		t.Fatal(err)
	}
	for _, p := range packets {
		if err := w.WritePacket(gopacket.CaptureInfo{CaptureLength: len(p), Length: len(p)}, p); err != nil {
			t.Fatal(err)
		}
	}
	return name
}

func TestCaptureVerifyCountsICRCs(t *testing.T) {
	good, err := hex.DecodeString(cnpPacket)
	if err != nil {
		t.Fatal(err)
	}
	bad := bytes.Clone(good)
	bad[40] ^= 1
	fragment := bytes.Clone(good)
	fragment[6] = 0x20
	fine, mixed, none := writeCaptureFile(t, good, good), writeCaptureFile(t, good, bad), writeCaptureFile(t)
	for _, test := range []struct {
		name   string
		args   []string
		status int
		stdout string
		stderr string // text that standard error must contain
	}{
		{"good", []string{fine}, 0, "icrc good 2 bad 0\n", ""},
		{"two files", []string{fine, fine}, 0, "icrc good 4 bad 0\n", ""},
		{"a bad one", []string{fine, mixed}, 1, "icrc good 3 bad 1\n", "x.pcap: frame 2: bad ICRC"},
		{"none", []string{none}, 1, "icrc good 0 bad 0\n", ""},
		{"unchecked", []string{fine, writeCaptureFile(t, fragment)}, 0, "icrc good 2 bad 0\n", "1 packets not checked"},
		{"no capture", []string{"main.go"}, exitFailure, "", "capture verify: main.go: "},
		{"no file", []string{"nonesuch"}, exitFailure, "", "nonesuch"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var stdout, stderr strings.Builder
			status := 0
			err := (&verifyCmd{Files: test.args}).verifyFiles(&stdout, &stderr)
			var code exitCodeError
			switch {
			case errors.As(err, &code):
				status = int(code)
			case err != nil:
				fmt.Fprintln(&stderr, err)
				status = exitFailure
			}
			if status != test.status || stdout.String() != test.stdout {
				t.Errorf("capture verify: got status %d, output %q, want %d and %q", status, stdout.String(),
					test.status, test.stdout)
			}
			if test.stderr == "" && stderr.Len() > 0 || !strings.Contains(stderr.String(), test.stderr) {
				t.Errorf("standard error: got %q, want %q in it", stderr.String(), test.stderr)
			}
		})
	}
}
