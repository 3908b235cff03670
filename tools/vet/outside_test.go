package vet

import (
	"os"
	"path/filepath"
	"testing"
)

// lockAcrossConnect is a consumer with its own mutex held across a call that may sleep.
const lockAcrossConnect = `package phone

import (
	"sync"

	"verbena/driver/loopback"
	"verbena/ib"
)

type Phone struct {
	mu sync.Mutex
	qp [2]*ib.QP
}

func (p *Phone) Dial(here ib.Local) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return ib.ConnectPair(p.qp[0], p.qp[1], here, here, ib.Path{})
}

var _ = loopback.New
`

// TestAddedPackageIsOutside checks that a package without a layer is treated like a consumer of another module.
func TestAddedPackageIsOutside(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"phone.go": lockAcrossConnect, "go.sum": string(sums),
		"go.mod": "module verbena/zz/phone\n\ngo 1.26.0\n\nrequire verbena v0.0.0\n\nreplace verbena => " + root + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("GOFLAGS", "-mod=mod")
	programs, err := Load(dir, Options{TrustSpace: true}, ".")
	if err != nil || len(programs) != 1 {
		t.Fatalf("Load: got %d programs and error %v, want 1 program", len(programs), err)
	}
	for _, r := range programs[0].Check() {
		if filepath.Dir(programs[0].Fset.Position(r.Pos).Filename) == dir {
			t.Errorf("got unexpected report %s", programs[0].Format(&r, true))
		}
	}
}
