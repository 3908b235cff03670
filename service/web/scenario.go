package web

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"

	"verbena/scenario"
)

// Scenario is a scenario in progress for a page.
type Scenario struct {
	mu       sync.Mutex
	result   []byte // as JSON
	timeline []byte // as SVG
}

// Publish replaces the result so far. Publish does not keep r.
func (s *Scenario) Publish(r *scenario.Result) error {
	result, err := json.Marshal(r)
	if err != nil {
		return err
	}
	var timeline bytes.Buffer
	if err := r.WriteTimeline(&timeline); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.result, s.timeline = result, timeline.Bytes()
	return nil
}

func (s *Scenario) json() json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.result
}

func (p *page) serveTimeline(w http.ResponseWriter) {
	var picture []byte
	if p.Scenario != nil {
		p.Scenario.mu.Lock()
		picture = p.Scenario.timeline
		p.Scenario.mu.Unlock()
	}
	if picture == nil {
		http.Error(w, "there is no scenario", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "image/svg+xml")
	w.Write(picture)
}

// WriteReport writes the page for a finished scenario as one file of HTML, which needs no server. It contains the
// timeline, and the result as JSON.
func WriteReport(w io.Writer, r *scenario.Result) error {
	data, err := json.Marshal(r) // escapes <, > and &, so no text ends the element
	if err != nil {
		return err
	}
	var timeline bytes.Buffer
	if err := r.WriteTimeline(&timeline); err != nil {
		return err
	}
	style, script := readAsset("style.css"), readAsset("app.js")
	picture := base64.StdEncoding.EncodeToString(timeline.Bytes())
	policy := fmt.Sprintf("default-src 'none'; img-src data:; style-src %s; script-src %s; base-uri 'none'; form-action 'none'",
		hashSource(style), hashSource(script))
	html := readAsset("index.html")
	for _, x := range []struct{ from, to string }{
		{`<meta name="referrer" content="no-referrer">`,
			`<meta http-equiv="Content-Security-Policy" content="` + policy + `">`},
		{`<link rel="icon" href="icon.svg">`, ""},
		{`<link rel="stylesheet" href="style.css">`, "<style>" + string(style) + "</style>"},
		{`<script src="app.js"></script>`, `<script type="application/json" id="report">` + string(data) + "</script>\n" +
			`<script type="text/plain" id="report-timeline">` + picture + "</script>\n<script>" + string(script) + "</script>"},
	} {
		if bytes.Count(html, []byte(x.from)) != 1 {
			return fmt.Errorf("write the report: the page has no single %q", x.from)
		}
		html = bytes.Replace(html, []byte(x.from), []byte(x.to), 1)
	}
	_, err = w.Write(html)
	return err
}

// hashSource returns the source for a script or a style in the page itself. (Content-Security-Policy)
func hashSource(b []byte) string {
	sum := sha256.Sum256(b)
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
