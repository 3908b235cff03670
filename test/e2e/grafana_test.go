//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"verbena/internal/testutil"
)

// dashboard is the part of a dashboard of Grafana that has queries.
type dashboard struct {
	Panels []struct {
		ID      int
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ Expr string }
	}
	Annotations struct {
		List []struct{ Name, Expr string }
	}
	Templating struct {
		List []struct{ Name, Type, Query string }
	}
}

// freeTCPAddr returns an address of this host that no socket uses now.
func freeTCPAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestDashboard evaluates each query of the dashboard for Grafana in a Prometheus that scrapes a service. A query must
// have a result, except one with a filter for values above 0. Its metrics and labels must exist.
func TestDashboard(t *testing.T) {
	t.Parallel()
	needProgram(t, "prometheus", "prometheus")
	b, err := os.ReadFile("../../recipes/grafana/verbena.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	metrics, addr, dir := freeTCPAddr(t), freeTCPAddr(t), newScratchDir(t)
	startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr(), "--metrics", metrics,
		"--limit", "qps=100/1000")
	config := filepath.Join(dir, "prometheus.yml")
	text := "scrape_configs: [{job_name: verbena, scrape_interval: 500ms, static_configs: [{targets: [\"" + metrics + "\"]}]}]\n"
	if err := os.WriteFile(config, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	p := exec.CommandContext(t.Context(), "prometheus", "--config.file="+config, "--storage.tsdb.path="+dir+"/data",
		"--web.listen-address="+addr)
	var log testutil.Buffer
	p.Stderr = &log
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	defer p.Wait()
	defer p.Process.Kill()
	query := func(expr string) (results []json.RawMessage, err error) {
		r, err := http.Get("http://" + addr + "/api/v1/query?query=" + url.QueryEscape(expr))
		if err != nil {
			return nil, err
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		var a struct {
			Status, Error string
			Data          struct{ Result []json.RawMessage }
		}
		if err == nil {
			err = json.Unmarshal(b, &a)
		}
		if err == nil && a.Status != "success" {
			err = fmt.Errorf("%s", a.Error)
		}
		return a.Data.Result, err
	}
	// Two samples make a rate.
	testutil.Eventually(t, "two samples in Prometheus", func() bool {
		r, err := query(`rate(verbena_device_sent_pkts_total[1m])`)
		return err == nil && len(r) == 1
	})
	if t.Failed() {
		t.Log(log.String())
	}
	var queries []string
	for i, x := range d.Panels {
		if x.ID != i+1 || x.Title == "" || len(x.Targets) == 0 {
			t.Errorf("panel %d: got %+v, want a number, a title and queries", i+1, x)
		}
		for _, o := range d.Panels[:i] {
			a, b := x.GridPos, o.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("panels %q and %q: got positions %v and %v, want no overlap", x.Title, o.Title, a, b)
			}
		}
		for _, target := range x.Targets {
			queries = append(queries, target.Expr)
		}
	}
	for _, x := range d.Annotations.List {
		queries = append(queries, x.Expr)
	}
	label := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`)
	for _, v := range d.Templating.List {
		if v.Type == "query" {
			m := label.FindStringSubmatch(v.Query)
			if m == nil {
				t.Errorf("variable %s: got the query %q, want label_values(METRIC, LABEL)", v.Name, v.Query)
				continue
			}
			queries = append(queries, fmt.Sprintf(`%s{%s!=""}`, m[1], m[2]))
		}
	}
	if len(queries) < 20 {
		t.Errorf("queries of the dashboard: got %d, want at least 20", len(queries))
	}
	names := regexp.MustCompile(`\b(verbena|process|go)_\w+`)
	grouping := regexp.MustCompile(`by \(([\w, ]+)\)`)
	for _, q := range queries {
		expr := strings.NewReplacer("$__rate_interval", "1m", "$device", ".*").Replace(q)
		r, err := query(expr)
		if filtered := strings.HasSuffix(expr, "> 0"); err != nil || len(r) == 0 && !filtered {
			t.Errorf("query %s: got %d results and error %v, want results", q, len(r), err)
		}
		for _, name := range names.FindAllString(expr, -1) {
			have, err := query(name)
			if err != nil || len(have) == 0 {
				t.Errorf("query %s: got no metric %s and error %v, want one", q, name, err)
				continue
			}
			for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
				for _, l := range strings.Split(m[1], ", ") {
					if !slices.ContainsFunc(have, func(s json.RawMessage) bool { return strings.Contains(string(s), `"`+l+`":`) }) {
						t.Errorf("query %s: got no label %s of %s, want one", q, l, name)
					}
				}
			}
		}
	}
}
