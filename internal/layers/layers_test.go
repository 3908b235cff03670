package layers

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"verbena/internal/gendoc"
)

func TestCheckReportsForbiddenImports(t *testing.T) {
	for _, c := range []struct {
		from, to string
		want     string // part of the message, or "" for none
	}{
		{"ib", "umem", ""},
		{"driver/rxe", "link/simnet", ""},
		{"link/simnet", "link", ""},
		{"driver/rxe", "driver/rxe/ring", ""},
		{"driver/rxe/ring", "uapi", ""},
		{"driver/rxe/ring", "driver/rxe", "higher layer"},
		{"driver/rxe/ring", "ib", "higher layer"},
		{"driver/rxe/ring", "link", "same layer"},
		{"ib", "driver/rxe/ring", "ib knows nothing of driver"},
		{"internal/shm", "internal/quota", ""},
		{"ib/ibtest", "ib/internal/qptable", ""},
		{"uapi", "ib", "higher layer"},
		{"ib", "ib/slot", "higher layer"},
		{"ib", "ib/check", "higher layer"},
		{"ib/check", "ib/internal/observe", ""},
		{"ib/ibtest", "ib/check", ""},
		{"ib", "link", "ib knows nothing of link"},
		{"umem", "roce", "same layer"},
		{"driver/loopback", "driver/rxe", "same layer"},
		{"capture", "supervisor", "same layer"},
		{"uverbs", "internal/gate", ""},
		{"ib/ibtest", "internal/gate", ""},
		{"nldev", "internal/gate", "which is for ib, uverbs, ib/ibtest only"},
		{"driver/rxe", "internal/gate", "which is for ib, uverbs, ib/ibtest only"},
		{"uverbs", "driver/rxe", "uverbs knows nothing of driver"},
		{"supervisor", "driver/loopback", "supervisor knows nothing of driver"},
		{"internal/quota", "uverbs", "higher layer"},
		{"service", "driver", ""},
		{"service", "driver/rxe", "service knows nothing of driver/"},
		{"service/metrics", "driver/rxe/ring", "service knows nothing of driver/"},
		{"service/servicetest", "driver/rxe", ""},
		{"driver/rxe", "driver", ""},
		{"driver", "driver/loopback", "higher layer"},
		{"driver/rxe", "engine", ""},
		{"engine", "driver/rxe", "higher layer"},
		{"engine", "engine/queue", ""},
		{"engine/queue", "engine", "higher layer"},
		{"driver/rxe/layout", "engine", "higher layer"},
		{"service", "engine", "service knows nothing of engine"},
		{"ib", "engine/transport", "ib knows nothing of engine"},
		{"driver/new", "ib", "driver/new is in no layer"},
		{"service", "internal/ctl", ""},
		{"internal/ctl", "link", "higher layer"},
		{"ibx", "ib", "ibx is in no layer"},
	} {
		bad := CheckImports([]Package{{c.from, []string{modulePrefix + c.to}}})
		got := strings.Join(bad, "\n")
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("Check of %s importing %s: got %q, want %q", c.from, c.to, got, c.want)
		}
	}
	for path, want := range map[string]bool{"fmt": false, "golang.org/x/sys/unix": false, "github.com/a/b": true,
		"golang.org/y": true} {
		bad := strings.Join(CheckImports([]Package{{"ib", []string{path}}}), "\n")
		if got := strings.Contains(bad, "standard library"); got != want {
			t.Errorf("Check of ib importing %s: got a violation %v, want %v", path, got, want)
		}
	}
}

// TestHasLayer checks which packages the rules apply to.
func TestHasLayer(t *testing.T) {
	for path, want := range map[string]bool{"verbena/ib/slot": true, "verbena/ib_test": true, "verbena/tools/vet": true,
		"verbena/examples/page": true, "verbena/zz/mine": false, "verbena/mine": false, "example.org/ib": false} {
		if got := HasLayer(path); got != want {
			t.Errorf("HasLayer(%q): got %v, want %v", path, got, want)
		}
	}
}

// TestCheckFindsPlantedImport plants a forbidden import in the module itself, and reads the imports in the same way as
// `make lint`.
func TestCheckFindsPlantedImport(t *testing.T) {
	dir := t.TempDir()
	planted := filepath.Join(dir, "planted.go")
	if err := os.WriteFile(planted, []byte("package umem\n\nimport _ \"verbena/uapi\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	at, err := filepath.Abs("../../umem/planted.go")
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(map[string]map[string]string{"Replace": {at: planted}})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, b, 0o600); err != nil {
		t.Fatal(err)
	}
	pkgs, err := LoadPackages(".", overlay)
	if err != nil {
		t.Fatal(err)
	}
	bad := CheckImports(pkgs)
	if len(bad) != 1 || bad[0] != "umem imports uapi, of the same layer" {
		t.Errorf("Check: got %q, want only the planted import", bad)
	}
}

func TestModule(t *testing.T) {
	pkgs, err := LoadPackages(".", "")
	if err != nil {
		t.Fatal(err)
	}
	if bad := CheckImports(pkgs); len(bad) > 0 {
		t.Errorf("Check: got violations, want none:\n%s", strings.Join(bad, "\n"))
	}
	for _, f := range unusedFolders(pkgs) {
		t.Errorf("folder %s: got no package, want one, or remove the folder from the layers", f)
	}
	gendoc.CheckSection(t, "../../docs/results/layers.md", "layers", layerTable(pkgs))
}
