package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

type manualCmd struct {
	Dir string `arg:"" help:"Directory; created if missing." complete:"file"`
}

// Run writes verbena.1, and one page for each command. The date of the pages is SOURCE_DATE_EPOCH, or today.
func (m *manualCmd) Run(app *kong.Kong) error {
	date := time.Now()
	if text := os.Getenv("SOURCE_DATE_EPOCH"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fmt.Errorf("man-pages: SOURCE_DATE_EPOCH=%s is not a number of seconds", text)
		}
		date = time.Unix(seconds, 0)
	}
	info, _ := debug.ReadBuildInfo()
	name, _, _ := strings.Cut(version(info), " (")
	if err := os.MkdirAll(m.Dir, 0o755); err != nil {
		return fmt.Errorf("man-pages: %w", err)
	}
	for page, text := range manual(app.Model, date.UTC().Format(time.DateOnly), name) {
		if err := os.WriteFile(filepath.Join(m.Dir, page), []byte(text), 0o644); err != nil {
			return fmt.Errorf("man-pages: %w", err)
		}
	}
	return nil
}

// manual returns the manual pages by file name. The pages contain the text of --help in the format of man(7).
func manual(app *kong.Application, date, version string) map[string]string {
	commands := visibleNodes(app.Children)
	pages := map[string]string{"verbena.1": overviewPage(app, commands, date, version)}
	for _, n := range commands {
		pages[pageOf(n)+".1"] = commandPage(app, n, date, version)
	}
	return pages
}

func visibleNodes(nodes []*kong.Node) (shown []*kong.Node) {
	for _, n := range nodes {
		if !n.Hidden {
			shown = append(shown, n)
		}
	}
	return shown
}

func pageOf(n *kong.Node) string { return "verbena-" + n.Name }

// roff is a manual page under construction.
type roff struct{ strings.Builder }

// title writes the page header.
func (r *roff) title(page, summary, date, version string) {
	fmt.Fprintf(r, ".\\\" Made by `verbena man-pages` from the command's own help.\n.TH %s 1 %s %q %q\n",
		strings.ToUpper(page), date, version, "Verbena")
	r.section("NAME")
	fmt.Fprintf(r, "%s \\-\n", escape(page))
	r.line(strings.TrimSuffix(lowerFirst(summary), "."))
}

func (r *roff) section(name string) { fmt.Fprintf(r, ".SH %s\n", name) }

// line writes filled text, and escapes text that looks like a macro.
func (r *roff) line(text string) {
	const width = 72
	var line string
	for _, word := range strings.Fields(text) {
		word = escape(word)
		if line != "" && len(line)+1+len(word) > width {
			r.fixed(line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	r.fixed(line)
}

// fixed writes a line that is already escaped.
func (r *roff) fixed(line string) {
	if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
		line = `\&` + line
	}
	r.WriteString(line + "\n")
}

// item writes a paragraph with a heading.
func (r *roff) item(head, text string) {
	fmt.Fprintf(r, ".TP\n.B %s\n", escape(head))
	r.line(text)
}

// text writes paragraphs. Indented lines are written without filling.
func (r *roff) text(text string) {
	var filled, fixed []string
	end := func() {
		if len(filled) > 0 {
			r.line(strings.Join(filled, " "))
		}
		if len(fixed) > 0 {
			r.WriteString(".RS 4\n.nf\n")
			for _, line := range fixed {
				r.fixed(escape(line))
			}
			r.WriteString(".fi\n.RE\n")
		}
		filled, fixed = nil, nil
	}
	for line := range strings.Lines(strings.TrimRight(text, "\n")) {
		line = strings.TrimRight(line, "\n")
		code, indented := strings.CutPrefix(line, "  ")
		switch {
		case line == "":
			end()
			r.WriteString(".P\n")
		case indented:
			fixed = append(fixed, code)
		default:
			if len(fixed) > 0 {
				end()
			}
			filled = append(filled, line)
		}
	}
	end()
}

func escape(s string) string {
	return strings.NewReplacer(`\`, `\e`, "-", `\-`, "`", `\(ga`, "~", `\(ti`, "^", `\(ha`).Replace(s)
}

func lowerFirst(s string) string {
	if len(s) > 1 && s[1] >= 'a' && s[1] <= 'z' {
		return strings.ToLower(s[:1]) + s[1:]
	}
	return s
}

// options writes the flags of a command, beginning with --help.
func (r *roff) options(flags []*kong.Flag) {
	for _, f := range flags {
		if f.Hidden {
			continue
		}
		head := f.String()
		if f.IsBool() && f.PlaceHolder != "" {
			head += "[=" + f.PlaceHolder + "]"
		}
		r.item(head, f.Help)
	}
}

// overviewPage returns verbena.1.
func overviewPage(app *kong.Application, commands []*kong.Node, date, version string) string {
	var r roff
	r.title("verbena", "RDMA in user space", date, version)
	r.section("SYNOPSIS")
	r.WriteString(".B verbena\n.RI [ flags ]\n.I command\n.RI [ arguments ]\n")
	r.section("DESCRIPTION")
	r.line(app.Help)
	r.section("COMMANDS")
	r.line("Each has a page of its own, such as verbena-run(1).")
	for _, n := range commands {
		leaves := visibleNodes(n.Children)
		if len(leaves) == 0 {
			leaves = []*kong.Node{n}
		}
		for _, leaf := range leaves {
			r.item(usageOf(leaf), leaf.Help)
		}
	}
	r.section("OPTIONS")
	r.options(app.Flags)
	r.section("ENVIRONMENT")
	for _, f := range app.Flags {
		for _, e := range f.Envs {
			r.item(e, "The default of --"+f.Name+". "+f.Help)
		}
	}
	r.item("XDG_RUNTIME_DIR", "Without --socket the control socket is below this directory, or below /tmp.")
	exitStatus(&r)
	r.section("SEE ALSO")
	var names []string
	for _, n := range commands {
		names = append(names, fmt.Sprintf(".BR %s (1)", escape(pageOf(n))))
	}
	r.WriteString(strings.Join(names, " ,\n") + "\n")
	return r.String()
}

func exitStatus(r *roff) {
	r.section("EXIT STATUS")
	r.line("0 after success, 125 after a failure. Those of a program under `verbena run` pass through; see verbena-run(1).")
}

// usageOf returns the name of a command with its arguments.
func usageOf(n *kong.Node) string {
	s := n.Path()
	for _, p := range n.Positional {
		s += " " + argument(p)
	}
	return s
}

func argument(p *kong.Positional) string {
	name := strings.ToUpper(p.Name)
	if p.Passthrough {
		return "-- " + name + " [ARGS]"
	}
	if p.IsCumulative() {
		name += "..."
	}
	if !p.Required {
		return "[" + name + "]"
	}
	return name
}

// commandPage returns the page of a command, including the commands of a group.
func commandPage(app *kong.Application, n *kong.Node, date, version string) string {
	var r roff
	r.title(pageOf(n), n.Help, date, version)
	group := visibleNodes(n.Children)
	leaves := group
	if len(group) == 0 {
		leaves = []*kong.Node{n}
	}
	r.section("SYNOPSIS")
	for i, leaf := range leaves {
		if i > 0 {
			r.WriteString(".br\n")
		}
		command, arguments := "verbena "+leaf.Path(), " [flags]"
		for _, f := range leaf.Flags {
			if f.Required {
				arguments += " --" + f.Name + "=" + f.FormatPlaceHolder()
			}
		}
		for _, p := range leaf.Positional {
			arguments += " " + argument(p)
		}
		fmt.Fprintf(&r, ".B %s\n", escape(command))
		r.line(strings.TrimSpace(arguments))
	}
	r.section("DESCRIPTION")
	if len(group) == 0 {
		r.line(n.Help)
		body, examples, found := strings.Cut(n.Detail, "Examples:\n")
		if strings.TrimSpace(body) != "" {
			r.WriteString(".P\n")
			r.text(strings.TrimSpace(body))
		}
		r.details(n)
		if found {
			r.section("EXAMPLES")
			r.text(examples)
		}
	} else {
		r.line(n.Help)
		for _, leaf := range group {
			fmt.Fprintf(&r, ".SS %s\n", escape(usageOf(leaf)))
			r.line(leaf.Help)
			if n.DefaultCmd == leaf {
				r.line("The default, if none is named.")
			}
			if leaf.Detail != "" {
				r.WriteString(".P\n")
				r.text(leaf.Detail)
			}
			r.details(leaf)
		}
	}
	r.section("OPTIONS OF ALL COMMANDS")
	r.options(slices.DeleteFunc(slices.Clone(app.Flags), func(f *kong.Flag) bool { return f.Name == "version" }))
	exitStatus(&r)
	r.section("SEE ALSO")
	r.WriteString(".BR verbena (1)\n")
	return r.String()
}

// details writes the arguments and flags of a command.
func (r *roff) details(n *kong.Node) {
	for _, p := range n.Positional {
		r.item(argument(p), p.Help)
	}
	r.options(n.Flags)
}
