package check

import (
	"strings"
	"testing"
)

func TestParseGoroutineDump(t *testing.T) {
	const dump = `goroutine 1 [running]:
main.main()
	/x/main.go:1 +0x1

goroutine 7 [chan receive (nil chan), 2 minutes, locked to thread]:
main.f()
	/x/main.go:2 +0x1

goroutine 12 [select (durable), synctest bubble 3]:
main.g()
	/x/main.go:3 +0x1

goroutine 34 gp=0xc000002380 m=0 mp=0x6b5f00 [sync.RWMutex.RLock]:
main.h()
	/x/main.go:4 +0x1

nonsense
`
	got := parseGoroutines([]byte(dump))
	for id, want := range map[int64]string{1: "running", 7: "chan receive", 12: "select", 34: "sync.RWMutex.RLock"} {
		if got[id].state != want || !strings.Contains(got[id].trace, "main.go") {
			t.Errorf("goroutine %d: %+v", id, got[id])
		}
	}
	if len(got) != 4 {
		t.Errorf("got %v", got)
	}
}

// The parser must accept any output of future runtimes.
func FuzzParseGoroutines(f *testing.F) {
	f.Add([]byte("goroutine 7 [chan receive, 2 minutes]:\nmain.f()\n\n"))
	f.Add([]byte("goroutine 9223372036854775808 []:\n"))
	f.Add([]byte("goroutine -1 gp=0 ["))
	f.Fuzz(func(t *testing.T, dump []byte) {
		for id, g := range parseGoroutines(dump) {
			if g.state != strings.TrimSpace(g.state) || strings.ContainsAny(g.state, ",(]") {
				t.Errorf("goroutine %d: got state %q, want one without separators", id, g.state)
			}
		}
	})
}

func TestLockedInReturnsPackage(t *testing.T) {
	for trace, want := range map[string]string{
		"sync.runtime_SemacquireMutex(0x1)\n\tsema.go:1\ninternal/sync.(*Mutex).lockSlow(0x1)\n\tmutex.go:2\n" +
			"verbena/tools/wrong.init.func3.1(0x1)\n\tc.go:7\n": "verbena/tools/wrong.",
		"main.(*T).f(...)\n\tm.go:1\n":              "main.",
		"gopkg.in/x.v1/y.F({0x1, 0x2})\n\ty.go:1\n": "gopkg.in/x.v1/y.",
		"": "",
	} {
		if got := (goroutine{trace: trace}).lockingPackage(); got != want {
			t.Errorf("package of %q: got %q, want %q", trace, got, want)
		}
	}
}
