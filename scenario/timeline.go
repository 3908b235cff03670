package scenario

import (
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// The following constants are the dimensions of the picture, in pixels.
const (
	picWidth   = 1100
	picLeft    = 170 // width of the column of names
	picRight   = 20
	picTop     = 64
	deviceLane = 58
	progLane   = 34
	legendLine = 18
)

// Colours. Red and green are not the only distinction, because failures also have a cross.
const (
	colGood    = "#2a9d8f"
	colBad     = "#d1495b"
	colBusy    = "#edae49"
	colGone    = "#8d99ae"
	colTraffic = "#457b9d"
	colText    = "#1d3557"
	colFaint   = "#dfe5ec"
)

// Colours for readers who prefer a dark scheme.
const (
	darkBack  = "#1d1d28"
	darkText  = "#e9e9f2"
	darkFaint = "#a2a3b8"
	darkAxis  = "#31313f"
)

// svgPicture is an SVG document under construction.
type svgPicture struct {
	strings.Builder
	span time.Duration
}

func (p *svgPicture) timeToX(at time.Duration) float64 {
	return picLeft + float64(picWidth-picLeft-picRight)*float64(min(max(at, 0), p.span))/float64(p.span)
}

func (p *svgPicture) drawRect(x, y, w, h float64, fill, title string) {
	fmt.Fprintf(p, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s">`, x, y, max(w, 1), h, fill)
	fmt.Fprintf(p, "<title>%s</title></rect>\n", escapeXML(title))
}

func (p *svgPicture) drawText(x, y float64, class, anchor, s string) {
	fmt.Fprintf(p, `<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s</text>`+"\n", x, y, class, anchor, escapeXML(s))
}

func (p *svgPicture) drawLine(x1, y1, x2, y2 float64, style string) {
	fmt.Fprintf(p, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" %s/>`+"\n", x1, y1, x2, y2, style)
}

func escapeXML(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s))
	return b.String()
}

// WriteTimeline writes the run as an SVG picture: the states of devices and programs over time, and the actions.
func (r *Result) WriteTimeline(w io.Writer) error {
	span := 100 * time.Millisecond
	for _, p := range r.Programs {
		span = max(span, p.Start, p.End)
	}
	devices := map[string]bool{}
	for _, s := range r.Samples {
		span = max(span, s.At)
		for name := range s.Devices {
			devices[name] = true
		}
	}
	for _, a := range r.Actions {
		if a.Began {
			span = max(span, a.At)
		}
	}
	p := &svgPicture{span: span}
	names := slices.Sorted(maps.Keys(devices))
	var actions []actionResult
	for _, a := range r.Actions {
		if a.Began {
			actions = append(actions, a)
		}
	}
	slices.SortStableFunc(actions, func(a, b actionResult) int { return int(a.At - b.At) })
	var failed []checkResult
	for _, c := range r.Checks {
		if !c.Passed {
			failed = append(failed, c)
		}
	}
	bottom := picTop + deviceLane*len(names) + progLane*len(r.Programs)
	height := bottom + 34 + legendLine*(len(actions)+len(failed)+2)
	fmt.Fprintf(p, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %d">`+"\n",
		picWidth, height, height)
	fmt.Fprintf(p, "<title>%s</title>\n", escapeXML(r.Name))
	fmt.Fprintf(p, "<style>text{font-family:'DejaVu Sans',Verdana,sans-serif;font-size:12px;fill:%s}.h{font-size:17px;font-weight:bold}.s{font-size:11px;fill:#5c677d}"+
		".w{fill:#fff;font-size:11px}.b{font-weight:bold}"+
		"@media(prefers-color-scheme:dark){.back{fill:%s}text{fill:%s}.s{fill:%s}.w{fill:#fff}.axis{stroke:%s}.ink{fill:%s}}</style>\n",
		colText, darkBack, darkText, darkFaint, darkAxis, darkText)
	fmt.Fprintf(p, `<rect class="back" width="%d" height="%d" fill="#fff"/>`+"\n", picWidth, height)
	p.drawText(20, 28, "h", "start", r.Name)
	verdict, colour := "passed", colGood
	if !r.Passed {
		verdict, colour = "failed", colBad
	}
	p.drawRect(float64(picWidth-picRight-70), 12, 70, 22, colour, verdict)
	p.drawText(float64(picWidth-picRight-35), 27, "w", "middle", verdict)
	p.drawText(20, 46, "s", "start", fmt.Sprintf("seed %d, %v", r.Seed, r.Took.Round(time.Millisecond)))
	p.drawAxis(bottom)
	y := float64(picTop)
	for _, name := range names {
		p.drawDevice(r, name, y)
		y += deviceLane
	}
	for i := range r.Programs {
		p.drawProgram(r, &r.Programs[i], y)
		y += progLane
	}
	last := -100.0
	for i, a := range actions {
		x := p.timeToX(a.At)
		colour := colText
		if a.Error != "" {
			colour = colBad
		}
		p.drawLine(x, picTop-6, x, float64(bottom), fmt.Sprintf(`stroke="%s" stroke-dasharray="4 3"`, colour))
		cx := max(x, last+17) // next to the previous mark if the two coincide
		last = cx
		fmt.Fprintf(p, `<circle cx="%.1f" cy="%d" r="8" fill="%s"/>`+"\n", cx, picTop-12, colour)
		p.drawText(cx, picTop-8, "w", "middle", fmt.Sprint(i+1))
	}
	y = float64(bottom + 52)
	for i, a := range actions {
		text := fmt.Sprintf("%d   %8.3f s   %s", i+1, a.At.Seconds(), a.Name)
		if a.What != a.Name {
			text += " (" + a.What + ")"
		}
		text += ", " + a.Moment
		if a.Rule != nil {
			text += fmt.Sprintf("; hit %d of %d", a.Rule.Hit, a.Rule.Seen)
		}
		if a.Error != "" {
			text += ": " + a.Error
		}
		p.drawText(20, y, "", "start", text)
		y += legendLine
	}
	for _, c := range failed {
		p.drawText(20, y, "b", "start", "✗ "+truncate(c.Subject+": "+c.What+": "+c.Why, 150))
		y += legendLine
	}
	p.WriteString("</svg>\n")
	_, err := io.WriteString(w, p.String())
	return err
}

func truncate(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n]) + "…"
	}
	return s
}

// drawAxis draws the time axis.
func (p *svgPicture) drawAxis(bottom int) {
	step := time.Millisecond
	for _, f := range []time.Duration{2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 30000, 60000, 300000,
		600000} {
		if p.span/step <= 12 {
			break
		}
		step = f * time.Millisecond
	}
	for at := time.Duration(0); at <= p.span; at += step {
		x := p.timeToX(at)
		p.drawLine(x, picTop, x, float64(bottom), fmt.Sprintf(`class="axis" stroke="%s"`, colFaint))
		p.drawText(x, float64(bottom+16), "s", "middle", fmt.Sprintf("%g s", at.Seconds()))
	}
}

// stateColour returns the colour and the name of a device's state.
func stateColour(d deviceSample, there bool) (colour, what string) {
	switch {
	case !there:
		return colGone, "the device does not exist"
	case d.Link == "down" || d.Link == "flap":
		return colBad, "link down"
	case strings.Contains(strings.ToLower(d.State), "active"):
		return colGood, "active"
	}
	return colBusy, d.State
}

// drawDevice draws a device: its state, its sent packets, and its retries and drops.
func (p *svgPicture) drawDevice(r *Result, name string, y float64) {
	p.drawText(20, y+18, "b", "start", name)
	p.drawText(20, y+34, "s", "start", "packets/s")
	type piece struct {
		from, to     time.Duration
		colour, what string
	}
	var state []piece
	var rates []float64
	var most float64
	for i, s := range r.Samples {
		d, there := s.Devices[name]
		colour, what := stateColour(d, there)
		if n := len(state); n > 0 {
			state[n-1].to = s.At
		}
		if n := len(state); n == 0 || state[n-1].what != what {
			from := s.At
			if n == 0 {
				from = 0
			}
			state = append(state, piece{from, s.At, colour, what})
		}
		rate := 0.0
		if i > 0 {
			before := r.Samples[i-1]
			if o, ok := before.Devices[name]; ok && there && d.Packets >= o.Packets && s.At > before.At {
				rate = float64(d.Packets-o.Packets) / (s.At - before.At).Seconds()
			}
		}
		rates = append(rates, rate)
		most = max(most, rate)
	}
	for _, s := range state {
		p.drawRect(p.timeToX(s.from), y+4, p.timeToX(s.to)-p.timeToX(s.from), 8, s.colour,
			fmt.Sprintf("%s: %s, %.3f to %.3f s", name, s.what, s.from.Seconds(), s.to.Seconds()))
	}
	p.drawEvents(r, name, y)
	if most == 0 {
		return
	}
	const high = 30
	base := y + 16 + high
	p.drawText(picLeft-8, y+34, "s", "end", formatWithUnitPrefix(most))
	fmt.Fprintf(p, `<path d="M%.1f %.1f`, p.timeToX(0), base)
	before := time.Duration(0)
	for i, s := range r.Samples { // a rate covers the time since the previous sample
		y := base - high*rates[i]/most
		fmt.Fprintf(p, " L%.1f %.1f L%.1f %.1f", p.timeToX(before), y, p.timeToX(s.At), y)
		before = s.At
	}
	fmt.Fprintf(p, ` L%.1f %.1f Z" fill="%s" fill-opacity="0.35" stroke="%s"/>`+"\n",
		p.timeToX(r.Samples[len(r.Samples)-1].At),
		base, colTraffic, colTraffic)
	for i := 1; i < len(r.Samples); i++ {
		a, b := r.Samples[i-1].Devices[name], r.Samples[i].Devices[name]
		if n := int64(b.Retries+b.Drops) - int64(a.Retries+a.Drops); n > 0 {
			x := p.timeToX(r.Samples[i].At)
			p.drawRect(x-1, base, 3, 6, colBad, fmt.Sprintf("%s: %d retries, %d drops up to %.3f s", name,
				b.Retries-min(a.Retries, b.Retries), b.Drops-min(a.Drops, b.Drops), r.Samples[i].At.Seconds()))
		}
	}
}

// drawEvents draws the asynchronous events of a device over its state, with their names where there is room.
func (p *svgPicture) drawEvents(r *Result, name string, y float64) {
	room := 0.0
	for i := range r.Events {
		e := &r.Events[i]
		if e.Dev != name {
			continue
		}
		x := p.timeToX(e.At)
		fmt.Fprintf(p, `<path d="M%.1f %.1f l5 5 l-5 5 l-5 -5 Z" class="ink" fill="%s" stroke="#fff"><title>%s</title></path>`+"\n", x,
			y+3, colText,
			escapeXML(fmt.Sprintf("%s: %s, %.3f s", name, e, e.At.Seconds())))
		if width := float64(7 * len(e.Event)); x >= room && x+width < picWidth {
			p.drawText(x+6, y+22, "s", "start", e.Event)
			room = x + width + 8
		}
	}
}

// formatWithUnitPrefix formats a number with a unit prefix.
func formatWithUnitPrefix(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.1fM", v/1e6)
	case v >= 1e3:
		return fmt.Sprintf("%.1fk", v/1e3)
	}
	return fmt.Sprintf("%.0f", v)
}

// drawProgram draws a program: its run time, its exit status and its lines.
func (p *svgPicture) drawProgram(r *Result, res *programResult, y float64) {
	p.drawText(20, y+20, "b", "start", truncate(res.Name, 20))
	if !res.Started {
		p.drawText(picLeft, y+20, "s", "start", "not started")
		return
	}
	colour := colGood
	if slices.ContainsFunc(r.Checks, func(c checkResult) bool { return c.Subject == res.Name && !c.Passed }) {
		colour = colBad
	}
	end, how := res.End, "the program has not ended"
	if res.Exit != nil {
		how = res.Exit.String()
	}
	if res.Killed {
		how = "killed at the time limit"
	}
	if res.Error != "" {
		how = res.Error
	}
	if end < res.Start || res.Exit == nil && res.Error == "" {
		end = p.span
	}
	x, w := p.timeToX(res.Start), p.timeToX(end)-p.timeToX(res.Start)
	p.drawRect(x, y+8, w, 18, colour, fmt.Sprintf("%s: %.3f to %.3f s, %s", res.Name, res.Start.Seconds(), end.Seconds(),
		how))
	if w > 140 {
		p.drawText(x+w-6, y+21, "w", "end", truncate(how, 40))
	}
	last := -10.0
	for _, l := range res.Lines {
		if lx := p.timeToX(l.At); lx-last >= 2 {
			p.drawRect(lx, y+5, 2, 4, colText, fmt.Sprintf("%.3f s  %s", l.At.Seconds(), l.Text))
			last = lx
		}
	}
}
