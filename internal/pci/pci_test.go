package pci

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
)

func TestParse(t *testing.T) {
	const rest = ",numa=-1,vendor=0x1af4,device=0x10f0,subvendor=0x1af4,subdevice=0x10f0,class=0x20000,revision=0x0,driver=rxe,gen=4,width=16"
	for _, c := range []struct {
		text string
		auto bool
		want string
	}{
		{"", true, "0000:00:00.0" + rest},
		{"auto", true, "0000:00:00.0" + rest},
		{"81:00.0", false, "0000:81:00.0" + rest},
		{"FFFF:FF:1F.7", false, "ffff:ff:1f.7" + rest},
		{"0000:81:00.0,numa=1023", false, "0000:81:00.0" + strings.Replace(rest, "-1", "1023", 1)},
		{"auto,vendor=1d0f,device=0xEFA1,driver=efa,revision=2,class=0x028000,gen=5,width=8,numa=0,subdevice=1", true,
			"0000:00:00.0,numa=0,vendor=0x1d0f,device=0xefa1,subvendor=0x1d0f,subdevice=0x1,class=0x28000,revision=0x2,driver=efa,gen=5,width=8"},
	} {
		f, auto, err := Parse(c.text, "rxe")
		if err != nil || auto != c.auto || f.String() != c.want {
			t.Errorf("Parse(%q): got %v, auto %v and error %v, want %s", c.text, f, auto, err, c.want)
		}
		if again, auto, err := Parse(f.String(), "other"); err != nil || auto || again != f {
			t.Errorf("Parse(%q): got %v, auto %v and error %v, want the same function", f, again, auto, err)
		}
	}
}

// TestParseRefuses tests descriptions with invalid values, and descriptions that could lead out of a directory.
func TestParseRefuses(t *testing.T) {
	for _, text := range []string{
		"81", "0:0:0:0.0", "0000:81:00", "0000:81:00.8", "0000:81:20.0", "0000:100:00.0", "10000:81:00.0", "-1:81:00.0",
		"0000:81:00.0/..", "../../etc", "+000:81:00.0", "0000:81:0x.0", "0000: 1:00.0", "\x00", "0000:81:00.0\n",
		"auto,numa=-2", "auto,numa=1024", "auto,numa=", "auto,numa", "auto,vendor=10000", "auto,vendor=-1", "auto,vendor=0x",
		"auto,class=1000000", "auto,revision=100", "auto,driver=", "auto,driver=..", "auto,driver=a/b", "auto,driver=a b",
		"auto,driver=" + strings.Repeat("x", 33), "auto,gen=0", "auto,gen=7", "auto,width=3", "auto,width=64", "auto,name=x",
		"auto,,", "auto,numa=1,numa=1", "auto,=", strings.Repeat("auto,", 1000), strings.Repeat("x", 1<<20),
	} {
		if f, _, err := Parse(text, "rxe"); !errors.Is(err, syscall.EINVAL) || len(err.Error()) > 300 {
			t.Errorf("Parse(%.60q): got %v and error %.400v, want EINVAL", text, f, err)
		}
	}
}

// FuzzParse tests that an accepted description contains only names that are safe in paths, and has a text form.
func FuzzParse(f *testing.F) {
	f.Add("0000:81:00.0,numa=1,driver=efa")
	f.Add("auto,vendor=0x1d0f")
	f.Fuzz(func(t *testing.T, text string) {
		x, _, err := Parse(text, "rxe")
		if err != nil {
			return
		}
		if strings.ContainsAny(x.Driver, "/.\x00\n") || x.Driver == "" {
			t.Errorf("%q: got driver %q, want a name", text, x.Driver)
		}
		if again, _, err := Parse(x.String(), "rxe"); err != nil || again != x {
			t.Errorf("%q: got %v and error %v from its text, want %v", text, again, err, x)
		}
		for name, content := range x.Files() {
			if content == "" {
				t.Errorf("%q: file %s: got no content, want some", text, name)
			}
		}
	})
}

func TestPlace(t *testing.T) {
	taken := map[Address]bool{}
	for _, c := range []struct {
		numa int
		want string
	}{
		{-1, "0000:81:00.0"}, {0, "0000:82:00.0"}, {1, "0000:91:00.0"}, {7, "0000:f1:00.0"}, {8, "0001:81:00.0"},
		{1023, "007f:f1:00.0"},
	} {
		f := Function{NUMA: c.numa}
		if err := f.Place(func(a Address) bool { return taken[a] }); err != nil || f.Address.String() != c.want {
			t.Errorf("node %d: got %v and error %v, want %s", c.numa, f.Address, err, c.want)
		}
		taken[f.Address] = true
	}
	f := Function{}
	if err := f.Place(func(Address) bool { return true }); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("no free address: got %v, want ENOSPC", err)
	}
}

// TestConfig tests the configuration bytes of a function and its bridge in the places from which programs read them.
func TestConfig(t *testing.T) {
	f, _, err := Parse("0000:c2:03.1,vendor=1d0f,device=efa1,revision=7,gen=5,width=8", "efa")
	if err != nil {
		t.Fatal(err)
	}
	b := []byte(f.Files()["config"])
	le := binary.LittleEndian
	got := fmt.Sprintf("%x %x %x %x %x", le.Uint16(b), le.Uint16(b[2:]), le.Uint32(b[8:]), b[14], le.Uint16(b[0x2c:]))
	if len(b) != 256 || got != "1d0f efa1 2000007 0 1d0f" {
		t.Errorf("configuration: got %s in %d bytes", got, len(b))
	}
	if c := b[b[0x34]:]; c[0] != 0x10 || le.Uint16(c[0x12:]) != 5|8<<4 {
		t.Errorf("PCI Express capability: got % x, want link status %#x", c[:0x14], 5|8<<4)
	}
	bridge, ok := f.UpstreamBridge()
	if !ok || bridge.Address.String() != "0000:c0:02.0" {
		t.Fatalf("bridge: got %v and %v, want 0000:c0:02.0", bridge.Address, ok)
	}
	b = []byte(bridge.Files()["config"])
	if b[14] != 1 || b[0x18] != 0xc0 || b[0x19] != 0xc2 || b[0x1a] != 0xc2 || le.Uint16(b[10:]) != 0x0604 {
		t.Errorf("configuration of the bridge: got % x", b[:0x20])
	}
	if got, want := f.Modalias(), "pci:v00001D0Fd0000EFA1sv00001D0Fsd0000EFA1bc02sc00i00"; got != want {
		t.Errorf("modalias: got %s, want %s", got, want)
	}
	f.Address.Bus = 0xc0
	if _, ok := f.UpstreamBridge(); ok {
		t.Error("function on the root bus: got a bridge, want none")
	}
}
