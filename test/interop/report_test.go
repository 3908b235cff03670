//go:build interop

package interop

import (
	"bufio"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// reportCell is one cell in the tables of docs/results/interop.md, and a line of JSON in the results.
type reportCell struct {
	Section   string  `json:"section"`
	Operation string  `json:"operation"`
	Service   string  `json:"service"`
	Role      string  `json:"role"`
	IP        string  `json:"ip"`
	Result    string  `json:"result"` // pass, note (pass with a reason to read), none (unsupported by one side), or FAIL
	Reason    string  `json:"reason,omitempty"`
	Seconds   float64 `json:"seconds"`
}

// deviationError is a deviation of the kernel from the expectation of a row. It makes the cell a note instead of a
// failure. A cell that returns no deviation, although the table lists one, fails, because the table is wrong.
type deviationError struct{ text string }

func (d *deviationError) Error() string { return d.text }

// report collects the cells.
type report struct {
	cells []reportCell
	facts []reportFact
}

// reportFact is a line of a table of figures. It is a comparison or count, with its result.
type reportFact struct {
	Section string   `json:"section"`
	Columns []string `json:"columns"`
}

var interopReport report

// reportedIPVersions returns the IP versions for a cell. These are both versions when a report is written, and
// otherwise one version selected by the name.
func reportedIPVersions(name ...string) []string {
	if os.Getenv("INTEROP_DOC") != "" {
		return ipNames
	}
	h := fnv.New32a()
	io.WriteString(h, strings.Join(name, "/"))
	i := h.Sum32() % uint32(len(ipNames))
	return ipNames[i : i+1]
}

// runCell runs a cell as a subtest on peers without objects, and records the result.
func runCell(t *testing.T, c reportCell, do func() error) {
	t.Helper()
	name := strings.ReplaceAll(strings.Join([]string{c.Operation, c.Service, c.IP, c.Role}, "/"), " ", "-")
	t.Run(name, func(t *testing.T) {
		start := time.Now()
		for _, p := range []*peer{verbenaPeer, kernelPeer} {
			if err := p.callMethod(nil, "reset", nil); err != nil {
				t.Errorf("reset before the cell: got %v, want success", err)
			}
		}
		err := do()
		c.Seconds = time.Since(start).Seconds()
		dev, isDeviation := err.(*deviationError)
		switch {
		case err == nil:
			c.Result = "pass"
		case isDeviation:
			c.Result, c.Reason = "note", dev.text
		case isUnsupported(err):
			c.Result, c.Reason = "none", err.Error()
			t.Logf("not supported: %v", err)
		default:
			c.Result, c.Reason = "FAIL", err.Error()
			t.Error(err)
		}
		interopReport.cells = append(interopReport.cells, c)
	})
	if verbenaPeer.dead != nil || kernelPeer.dead != nil {
		t.Fatal("connections to the peers: got a lost one, want both")
	}
	if n := interopReport.countResults()["FAIL"]; n > maxFailures {
		t.Fatalf("stop after %d failed cells", n)
	}
}

// maxFailures is the number of failures that ends a run, because many failing cells wait for a timeout.
const maxFailures = 60

// countResults returns the number of cells for each result.
func (r *report) countResults() map[string]int {
	count := map[string]int{}
	for _, c := range r.cells {
		count[c.Result]++
	}
	return count
}

// writeResults writes the results to the files named by $INTEROP_JSON and $INTEROP_DOC.
func (r *report) writeResults(l *testbed) error {
	count := r.countResults()
	fmt.Printf(
		"interop: %d cells: %d pass, %d pass with a note, %d not supported by one side, %d FAIL; guest booted in %.0f s, all in %.0f s\n",
		len(r.cells), count["pass"], count["note"], count["none"], count["FAIL"], l.booted.Seconds(), time.Since(
			l.start).Seconds())
	if name := os.Getenv("INTEROP_JSON"); name != "" {
		if err := writeFile(name, func(w *bufio.Writer) {
			enc := json.NewEncoder(w)
			for _, c := range r.cells {
				enc.Encode(c)
			}
			for _, f := range r.facts {
				enc.Encode(f)
			}
		}); err != nil {
			return err
		}
	}
	if name := os.Getenv("INTEROP_DOC"); name != "" {
		return writeFile(name, func(w *bufio.Writer) { r.writeDocument(w, l) })
	}
	return nil
}

func writeFile(name string, write func(*bufio.Writer)) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	write(w)
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Close()
}

// reportSections lists the sections of the document in order.
var reportSections = []struct{ key, title, text string }{
	{"operations", "Operations",
		"Each cell transfers messages of 0 bytes to 1 MB (64 KB or datagrams where the row or the " +
			"service demands it). It checks the completions on both sides, the data, and that no other memory was written."},
	{"errors", "Errors", "Operations that must fail. Each cell checks the completion status at the requester, the status at the " +
		"responder if it has a completion, and the states of the queue pairs."},
	{"loss", "Loss", "The same transfers while packets are lost, duplicated, reordered or damaged: by `verbena fault add` on " +
		"Verbena's side, by `tc netem` on the kernel's. RC must deliver every message once and in order. " +
		"A message of UC or UD that arrives must be intact."},
	{"cm", "Connection managers",
		"Programs of librdmacm: the server listens on the responder's connection manager, the client connects by the " +
			"other, over RC or to a datagram service."},
	{"programs", "Programs",
		"The server runs on the responder's side, the client on the other; `ibv_*_pingpong` checks the data."},
}

// writeDocument writes the report in the format of docs/results/interop.md.
func (r *report) writeDocument(w *bufio.Writer, l *testbed) {
	hello, err := kernelPeer.queryPeerInfo()
	if err != nil {
		hello.Release = "of unknown version"
	}
	fmt.Fprintf(w, "# Results: Verbena and the Linux kernel's Soft-RoCE on one wire\n\n")
	fmt.Fprintf(w, "[interop.md](../interop.md) has the conclusions. `make docs-interop` writes this file. It runs Verbena on one\n"+
		"side and Debian's kernel, in QEMU, on the other, over a TAP device: see [test/interop](../../test/interop/doc.go).\n\n")
	fmt.Fprintf(w, "| | |\n|---|---|\n| date | %s |\n| kernel | Linux %s, `rdma_rxe` |\n| libraries | rdma-core %s, perftest %s, on both sides |\n"+
		"| host | Linux %s, %s, %d CPUs; the guest without KVM |\n| duration | %.0f s, of them %.0f s for booting the guest |\n\n",
		time.Now().UTC().Format("2006-01-02"), hello.Release, packageVersion("ibverbs-providers"), packageVersion("perftest"),
		hostRelease(), runtime.GOARCH, runtime.NumCPU(), time.Since(l.start).Seconds(), l.booted.Seconds())
	fmt.Fprintf(w, "In a column \"A → B\", A is the requester (client) and B the responder (server). A cell is one of:\n\n"+
		"- `pass`, with a note if the kernel departs from the specification or from the row;\n"+
		"- `-`: one side does not have the operation;\n"+
		"- `FAIL`.\n\nThe notes follow each table.\n")
	for _, s := range reportSections {
		if slices.ContainsFunc(r.cells, func(c reportCell) bool { return c.Section == s.key }) {
			fmt.Fprintf(w, "\n## %s\n\n%s\n\n", s.title, s.text)
			r.writeTable(w, s.key)
		}
	}
	r.writeFacts(w)
}

// writeTable writes the cells of a section, with a line for each operation and service and a column for each role and
// IP version.
func (r *report) writeTable(w *bufio.Writer, section string) {
	type line struct{ operation, service string }
	var lines []line
	at := map[line]map[string]reportCell{}
	for _, c := range r.cells {
		if c.Section != section {
			continue
		}
		k := line{c.Operation, c.Service}
		if at[k] == nil {
			at[k] = map[string]reportCell{}
			lines = append(lines, k)
		}
		at[k][c.Role+", "+c.IP] = c
	}
	var columns []string
	for _, ro := range roles {
		for _, ip := range ipNames {
			columns = append(columns, ro.String()+", "+ip)
		}
	}
	fmt.Fprintf(w, "| operation | service | %s |\n|---|---|%s\n", strings.Join(columns, " | "),
		strings.Repeat("---|", len(columns)))
	var notes []string
	for _, k := range lines {
		fmt.Fprintf(w, "| %s | %s |", k.operation, k.service)
		for _, col := range columns {
			c, ok := at[k][col]
			text := ""
			switch {
			case !ok:
			case c.Result == "none":
				text = "-"
			case c.Result == "note":
				text = "pass"
			default:
				text = c.Result
			}
			if c.Reason != "" {
				n := slices.Index(notes, c.Reason)
				if n < 0 {
					n, notes = len(notes), append(notes, c.Reason)
				}
				text += fmt.Sprintf(" (%d)", n+1)
			}
			fmt.Fprintf(w, " %s |", text)
		}
		fmt.Fprintln(w)
	}
	if len(notes) > 0 {
		fmt.Fprintln(w)
	}
	for i, n := range notes {
		fmt.Fprintf(w, "%d. %s\n", i+1, strings.ReplaceAll(n, "\n", " "))
	}
}

// writeFacts writes the facts.
func (r *report) writeFacts(w *bufio.Writer) {
	last := ""
	for _, f := range r.facts {
		if f.Section != last {
			last = f.Section
			fmt.Fprintf(w, "\n## %s\n\n| %s |\n|%s\n", f.Section, strings.Join(f.Columns, " | "),
				strings.Repeat("---|", len(f.Columns)))
			continue
		}
		fmt.Fprintf(w, "| %s |\n", strings.Join(f.Columns, " | "))
	}
}

func packageVersion(pkg string) string {
	v, err := theLab.runCommand("dpkg-query", "-W", "-f=${Version}", pkg)
	if err != nil {
		return "of unknown version"
	}
	return v
}

func hostRelease() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "of unknown version"
	}
	return strings.TrimSpace(string(b))
}
