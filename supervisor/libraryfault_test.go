package supervisor

import (
	"strings"
	"testing"

	"verbena/ib"
)

func TestFindRDMACore(t *testing.T) {
	const other = "7f00-7f01 r-xp 00000000 fe:00 1 /usr/lib/x86_64-linux-gnu/libc.so.6\n"
	for _, c := range []struct{ maps, want string }{
		{"", ""},
		{other, ""},
		{other + "7f10-7f11 r--p 00000000 fe:00 2 /usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0\n", "44.0"},
		{"7f10-7f11 r--p 00000000 fe:00 2 /opt/my libs/libibverbs.so.1.11.33.2\n" + other, "33.2"},
		{"7f10-7f11 r--p 00000000 fe:00 2 /usr/lib/libibverbs.so.1\n", ""},
		{"7f10-7f11 r--p 00000000 fe:00 2 /usr/lib/libibverbs.so.1.14.4x.0\n", ""},
		{"7f10-7f11 r--p 00000000 fe:00 2 /a/libibverbs.so.1.14.44.0\n7f20-7f21 r--p 00000000 fe:00 2 /b/libibverbs.so.1.14.44.0\n", ""},
		{"7f10-7f11 r--p 00000000 fe:00 2 /usr/lib/libibverbs/librxe-rdmav34.so\n", ""},
	} {
		if got := findRDMACoreVersion(strings.NewReader(c.maps)); got != c.want {
			t.Errorf("findRDMACoreVersion(%q): got %q, want %q", c.maps, got, c.want)
		}
	}
}

func TestExplainLibraryFault(t *testing.T) {
	for _, c := range []struct {
		fault         ib.LibraryFault
		version, want string
	}{
		{ib.Overconsumed, "44.0", "Its rdma-core 44.0 does that"}, {ib.Overconsumed, "", "rdma-core before v55 does that"},
		{ib.Overconsumed, "55.0", ""}, {ib.LengthLost, "63.1", "Its rdma-core 63.1 does that"}, {ib.LengthLost, "64.0", ""},
	} {
		got := explainLibraryFault(c.fault, 7, "prog", c.version)
		if !strings.Contains(got, c.want) || !strings.Contains(got, "prog (process 7)") ||
			(c.want == "") == strings.Contains(got, "rdma-core") {
			t.Errorf("fault %d, version %q: got %q, want %q in the text", c.fault, c.version, got, c.want)
		}
	}
}
