// Package layers defines the permitted imports between packages of this module. They are the layers of
// docs/ARCHITECTURE.md, checked against the actual imports.
//
// A package may import packages of lower layers and of its own folder. Test files may import any package. Command
// verbenavet applies the rules, and [draw] writes the table of docs/results/layers.md.
package layers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
)

const modulePrefix = "verbena/"

// layerRow is a row of the table, with its folders. Packages in different folders of one layer do not import one
// another.
type layerRow struct {
	name    string
	folders []string
}

// layers lists the layers from the top down. A package belongs to the longest folder that contains it, but each
// driver needs a separate row.
var layers = []layerRow{
	{"programs", []string{"cmd/verbena", "examples", "test"}},
	{"the process that owns the devices", []string{"service"}},
	{"unmodified programs; programs that come by a socket; capture files; net.Conn over RDMA; failover tests",
		[]string{"supervisor", "remote", "capture", "rdmanet", "scenario"}},
	{"the Go client; the connection manager's device file; netlink's answers; traces of work requests",
		[]string{"verbs", "rdmacm/ucma", "nldev", "reqtrace"}},
	{"user contexts; the connection manager", []string{"uverbs", "rdmacm"}},
	{"low-level drivers", []string{"driver/rxe", "driver/efa", "driver/loopback"}},
	{"queues of programs on any low-level driver", []string{"driver/relay"}},
	{"the engine of low-level drivers; causes of failures", []string{"engine", "explain"}},
	{"what a service needs of a driver", []string{"driver"}},
	{"layouts of queues in shared memory; their flush without a service",
		[]string{"driver/rxe/layout", "driver/efa/layout", "driver/orphan"}},
	{"queues in decoded form", []string{"engine/queue"}},
	{"the midlayer's helpers and suite", []string{"ib/attach", "ib/completion", "ib/ibtest", "ib/slot"}},
	{"checked mode of the midlayer; the least convenient device", []string{"ib/check", "ib/weak"}},
	{"the midlayer", []string{"ib"}},
	{"the protocol as values; shared rings; sockets, faults, simulated networks",
		[]string{"engine/transport", "driver/rxe/ring", "driver/efa/ring", "link"}},
	{"ground floor", []string{"internal", "netdev", "roce", "uapi", "umem"}},
}

// forbiddenImports lists forbidden imports that the layers would allow, because packages above the midlayer must not
// depend on a driver. A folder that ends in a slash means only the packages below it. but is a folder below from that
// is exempt, or "".
var forbiddenImports = []struct{ from, to, but string }{
	{"uverbs", "driver", ""}, {"supervisor", "driver", ""}, {"remote", "driver", ""}, {"capture", "driver", ""}, {"ib",
		"driver", ""},
	{"ib", "link", ""}, {"supervisor", "link", ""}, {"remote", "link", ""}, {"rdmacm", "driver", ""}, {"rdmacm", "link",
		""},
	{"service", "driver/", "service/servicetest"},
	{"ib", "engine", ""}, {"uverbs", "engine", ""}, {"rdmacm", "engine", ""}, {"supervisor", "engine", ""},
	{"remote", "engine", ""}, {"capture", "engine", ""}, {"service", "engine", ""},
}

// restrictedFolders lists folders that only certain packages may import. Other packages must not act as a user context.
var restrictedFolders = []struct {
	to   string
	from []string
}{
	{"internal/gate", []string{"ib", "uverbs", "ib/ibtest"}},
}

// coreFolders lists the folders that depend only on the standard library, golang.org/x and one another.
var coreFolders = []string{
	"driver", "engine", "ib", "link", "netdev", "nldev", "rdmacm", "rdmanet", "roce", "uapi", "umem", "uverbs", "verbs",
}

// Package is the output of go list for a package.
type Package struct {
	ImportPath string
	Imports    []string
}

// LoadPackages reads the imports of the module's packages, without test files, in a folder of the module. overlay is
// the
// -overlay of go list, or "".
func LoadPackages(dir, overlay string) ([]Package, error) {
	args := []string{"list", "-json=ImportPath,Imports"}
	if overlay != "" {
		args = append(args, "-overlay="+overlay)
	}
	c := exec.Command("go", append(args, modulePrefix+"...")...)
	c.Dir = dir
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.String())
	}
	var pkgs []Package
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p Package
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs, nil
		} else if err != nil {
			return nil, fmt.Errorf("read the answer of go list: %w", err)
		}
		p.ImportPath = strings.TrimPrefix(p.ImportPath, modulePrefix)
		pkgs = append(pkgs, p)
	}
}

// isBelow reports whether a package is in a folder or below it. A folder that ends in a slash excludes its own package.
func isBelow(pkg, folder string) bool {
	rest, ok := strings.CutPrefix(pkg, folder)
	return ok && (rest == "" || rest[0] == '/' || strings.HasSuffix(folder, "/"))
}

// layerOf returns the layer of a package and its folder. The layer is -1 if the package has none.
func layerOf(pkg string) (int, string) {
	at, folder := -1, ""
	for i, l := range layers {
		for _, f := range l.folders {
			if isBelow(pkg, f) && len(f) > len(folder) && (f != "driver" || pkg == f) {
				at, folder = i, f
			}
		}
	}
	return at, folder
}

// HasLayer reports whether the rules apply to the package with an import path. They apply neither to packages of
// other modules nor to packages that a user has added to a copy of the repository. A test package counts as
// its package.
func HasLayer(importPath string) bool {
	pkg, inModule := strings.CutPrefix(strings.TrimSuffix(importPath, "_test"), modulePrefix)
	at, _ := layerOf(pkg)
	return inModule && (at >= 0 || isBelow(pkg, "tools"))
}

// CheckImports returns a line for each import that violates a rule. The packages may be a part of the module.
func CheckImports(pkgs []Package) (bad []string) {
	for _, p := range pkgs {
		from, folder := layerOf(p.ImportPath)
		if from < 0 {
			bad = append(bad, fmt.Sprintf("%s is in no layer", p.ImportPath))
			continue
		}
		for _, i := range p.Imports {
			to, ok := strings.CutPrefix(i, modulePrefix)
			if !ok {
				if isExternal(i) && slices.ContainsFunc(coreFolders, func(f string) bool { return isBelow(p.ImportPath, f) }) {
					bad = append(bad, fmt.Sprintf("%s imports %s: it may import the standard library and golang.org/x only",
						p.ImportPath, i))
				}
				continue
			}
			at, other := layerOf(to)
			switch {
			case at == from && other != folder:
				bad = append(bad, fmt.Sprintf("%s imports %s, of the same layer", p.ImportPath, to))
			case at < from:
				bad = append(bad, fmt.Sprintf("%s imports %s, of a higher layer", p.ImportPath, to))
			}
			for _, o := range restrictedFolders {
				if isBelow(to, o.to) && !slices.ContainsFunc(o.from, func(f string) bool { return isBelow(p.ImportPath, f) }) {
					bad = append(bad, fmt.Sprintf("%s imports %s, which is for %s only", p.ImportPath, to, strings.Join(o.from, ", ")))
				}
			}
			for _, n := range forbiddenImports {
				if isBelow(p.ImportPath, n.from) && isBelow(to, n.to) && (n.but == "" || !isBelow(p.ImportPath, n.but)) {
					bad = append(bad, fmt.Sprintf("%s imports %s: %s knows nothing of %s", p.ImportPath, to, n.from, n.to))
				}
			}
		}
	}
	return bad
}

// unusedFolders returns the folders of the layers without a package of the module.
func unusedFolders(pkgs []Package) (folders []string) {
	used := map[string]bool{}
	for _, p := range pkgs {
		_, folder := layerOf(p.ImportPath)
		used[folder] = true
	}
	for _, l := range layers {
		for _, f := range l.folders {
			if !used[f] {
				folders = append(folders, f)
			}
		}
	}
	return folders
}

// isExternal reports whether an import is neither of the standard library nor of golang.org/x.
func isExternal(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return strings.Contains(first, ".") && !isBelow(path, "golang.org/x")
}

// layerTable returns the layers as a Markdown table: the folders, and the imports of each.
func layerTable(pkgs []Package) string {
	imports := map[string][]string{}
	for _, p := range pkgs {
		_, from := layerOf(p.ImportPath)
		for _, i := range p.Imports {
			if i, ok := strings.CutPrefix(i, modulePrefix); ok {
				if _, to := layerOf(i); to != from && !slices.Contains(imports[from], to) {
					imports[from] = append(imports[from], to)
				}
			}
		}
	}
	var b strings.Builder
	b.WriteString("| layer | folder | imports |\n|---|---|---|\n")
	for _, l := range layers {
		for i, f := range l.folders {
			name := l.name
			if i > 0 {
				name = ""
			}
			to := imports[f]
			slices.SortFunc(to, func(a, b string) int {
				x, _ := layerOf(a)
				y, _ := layerOf(b)
				if x != y {
					return x - y
				}
				return strings.Compare(a, b)
			})
			fmt.Fprintf(&b, "| %s | `%s` | %s |\n", name, f, strings.Join(to, ", "))
		}
	}
	return b.String()
}
