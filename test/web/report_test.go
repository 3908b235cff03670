package web

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"verbena/scenario"
	"verbena/service/web"
)

// hostileText is a text that a program may print.
const hostileText = `</script><script>document.title=1</script><img src=x onerror="document.title=1">`

// newResult returns a result with hostile texts. checks is a JSON value: null while the scenario runs.
func newResult(t *testing.T, checks string) *scenario.Result {
	t.Helper()
	text, err := json.Marshal(hostileText)
	if err != nil {
		t.Fatal(err)
	}
	var r scenario.Result
	if err := json.Unmarshal(fmt.Appendf(nil, `{"name":%[1]s,"seed":7,"took_ns":2000000000,"checks":%[2]s,
		"programs":[{"name":"client","started":true,"end_ns":1900000000,"exit":{"code":3},"lines":[{"at_ns":5000000,"text":%[1]s}]}],
		"actions":[{"name":"flap","what":"link rxe0 flap","moment":"at 1s","began":true,"done":true,"at_ns":1000000000}],
		"counters":{"rxe0":{"sent_pkts":1234}},
		"samples":[{"at_ns":0,"devices":{"rxe0":{"state":"active"}}},{"at_ns":2000000000,"devices":{"rxe0":{"state":"active","packets":9}}}]}`,
		text, checks), &r); err != nil {
		t.Fatal(err)
	}
	return &r
}

// TestReport tests a report in the browser: it needs no server, and texts of programs stay text.
func TestReport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.html")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	r := newResult(t, `[{"subject":"client","what":"exit code 0","passed":false,"why":"exit code 3"},
		{"subject":"flap","what":"is done","passed":true}]`)
	if err := web.WriteReport(f, r); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	b := newBrowser(t)
	b.show("file://" + file)
	b.await(`document.querySelector("#scenario .verdict").innerText.includes("1 of 2 expectations")`)
	b.await(`document.querySelector("#scenario").innerText.includes("✗ client: exit code 0: exit code 3")`)
	b.await(`document.querySelector("#scenario img").naturalWidth > 500`)
	const output = `document.querySelector("#scenario .output").textContent`
	if got := eval[string](b, output); got != "   0.005 s  "+hostileText {
		t.Errorf("output of the program: got %q, want its line", got)
	}
	if n := eval[int](b, `document.querySelectorAll("img, .live:not([hidden])").length`); n != 1 {
		t.Errorf("pictures and live parts: got %d, want the timeline alone", n)
	}
	if got := eval[string](b, `document.title`); got != hostileText+" – verbena" {
		t.Errorf("title: got %q, want the name of the scenario", got)
	}
}

// TestRunningScenario tests a page with a scenario in progress, and its end.
func TestRunningScenario(t *testing.T) {
	var s web.Scenario
	if err := s.Publish(newResult(t, "null")); err != nil {
		t.Fatal(err)
	}
	l := newLab(t, [2]string{"127.91.24.1", "127.91.24.2"}, web.Options{Scenario: &s})
	b := newBrowser(t)
	b.show(l.url)
	b.await(`document.querySelector("#scenario .tag").textContent === "running"`)
	b.await(`document.querySelector("#scenario img").naturalWidth > 500`)
	b.await(`document.querySelectorAll("#picture .node").length === 2`)
	if err := s.Publish(newResult(t, `[{"subject":"flap","what":"is done","passed":true}]`)); err != nil {
		t.Fatal(err)
	}
	b.await(`document.querySelector("#scenario .tag").textContent === "failed"`)
	if got := eval[string](b, `document.title`); got != "verbena" {
		t.Errorf("title: got %q, want no script that changes it", got)
	}
	eval[chromedp.Void](b, `document.querySelector("#scenario details summary").click()`)
	b.await(`document.querySelector("#scenario details table").innerText.includes("is done")`)
}
