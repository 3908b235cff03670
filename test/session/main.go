// Command session runs commands in a shell, and writes the terminal's content as an SVG picture:
//
//	go run ./test/session < docs/session.txt > docs/session.svg
//
// The command types each line of the input at the prompt. Lines that begin with a blank run without being shown,
// and their output is not shown either.
package main

import (
	"bufio"
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

const (
	width      = 100 // in columns
	charWidth  = 7.8
	lineHeight = 18
	// settle is the maximum delay of output from background commands.
	settle = 300 * time.Millisecond
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "session:", err)
		os.Exit(1)
	}
}

type terminalLine struct {
	text  string
	typed bool
}

func run() error {
	shell := exec.Command("bash", "--norc")
	in, err := shell.StdinPipe()
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	shell.Stdout, shell.Stderr = w, w
	if err := shell.Start(); err != nil {
		return err
	}
	w.Close()
	printed := make(chan string)
	go func() {
		defer close(printed)
		for s := bufio.NewScanner(r); s.Scan(); {
			printed <- s.Text()
		}
	}()
	var shown []terminalLine
	const done = "-- done --"
	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		command := input.Text()
		hidden := strings.HasPrefix(command, " ")
		if !hidden {
			shown = append(shown, terminalLine{command, true})
		}
		fmt.Fprintf(in, "%s\nsleep %v\necho %s\n", command, settle.Seconds(), done)
		for {
			text, ok := <-printed
			if !ok {
				return errors.New("read the output: the shell has ended")
			}
			if text == done {
				break
			}
			if !hidden {
				shown = append(shown, terminalLine{text, false})
			}
		}
	}
	in.Close()
	if err := shell.Wait(); err != nil {
		return err
	}
	_, err = os.Stdout.Write(renderSVG(shown))
	return err
}

// expandTabs replaces tabs by spaces, with a stop at every eighth column.
func expandTabs(s string) string {
	var b strings.Builder
	n := 0
	for _, r := range s {
		if r == '\t' {
			b.WriteString(strings.Repeat(" ", 8-n%8))
			n += 8 - n%8
			continue
		}
		b.WriteRune(r)
		n++
	}
	return b.String()
}

// renderSVG returns the terminal as SVG.
func renderSVG(lines []terminalLine) []byte {
	var b bytes.Buffer
	w, h := int(width*charWidth)+40, len(lines)*lineHeight+64
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d">`+"\n", w, h)
	b.WriteString(
		"<style>text{font-family:'DejaVu Sans Mono',Menlo,Consolas,monospace;font-size:13px;fill:#d8dee9;white-space:pre}.t{fill:#fff;font-weight:bold}.p{fill:#8fbc8f}</style>\n")
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="8" fill="#1f2430"/>`+"\n", w, h)
	for i, c := range []string{"#ed6a5e", "#f5bf4f", "#61c554"} {
		fmt.Fprintf(&b, `<circle cx="%d" cy="20" r="6" fill="%s"/>`+"\n", 22+20*i, c)
	}
	for i, l := range lines {
		y := 58 + i*lineHeight
		text := expandTabs(l.text)
		if r := []rune(text); len(r) > width-2 {
			text = string(r[:width-3]) + "…"
		}
		var e bytes.Buffer
		_ = xml.EscapeText(&e, []byte(text))
		x, class := 20.0, ""
		if l.typed {
			fmt.Fprintf(&b, `<text x="20" y="%d" class="p">$</text>`+"\n", y)
			x, class = 20+2*charWidth, ` class="t"`
		}
		fmt.Fprintf(&b, `<text x="%.1f" y="%d"%s xml:space="preserve">%s</text>`+"\n", x, y, class, e.Bytes())
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}
