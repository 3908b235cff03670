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
	name, _, _ := strings.Cut(versionText(info), " (")
	if err := os.MkdirAll(m.Dir, 0o755); err != nil {
		return fmt.Errorf("man-pages: %w", err)
	}
	for page, text := range manualPages(app.Model, date.UTC().Format(time.DateOnly), name) {
		if err := os.WriteFile(filepath.Join(m.Dir, page), []byte(text), 0o644); err != nil {
			return fmt.Errorf("man-pages: %w", err)
		}
	}
	return nil
}

// manualPages returns the manual pages by file name. The pages contain the text of --help in the format of man(7).
func manualPages(app *kong.Application, date, version string) map[string]string {
	commands := visibleNodes(app.Children)
	pages := map[string]string{"verbena.1": overviewManualPage(app, commands, date, version)}
	for _, n := range commands {
		pages[manualPageName(n)+".1"] = commandManualPage(app, n, date, version)
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

func manualPageName(n *kong.Node) string { return "verbena-" + n.Name }

// roffPage is a manual page under construction.
type roffPage struct{ strings.Builder }

// writeTitle writes the page header.
func (r *roffPage) writeTitle(page, summary, date, version string) {
	fmt.Fprintf(r, ".\\\" Made by `verbena man-pages` from the command's own help.\n.TH %s 1 %s %q %q\n",
		strings.ToUpper(page), date, version, "Verbena")
	r.writeSection("NAME")
	fmt.Fprintf(r, "%s \\-\n", escapeRoff(page))
	r.writeLine(strings.TrimSuffix(lowerFirstLetter(summary), "."))
}

func (r *roffPage) writeSection(name string) { fmt.Fprintf(r, ".SH %s\n", name) }

// writeLine writes filled text, and escapes text that looks like a macro.
func (r *roffPage) writeLine(text string) {
	const width = 72
	var line string
	for _, word := range strings.Fields(text) {
		word = escapeRoff(word)
		if line != "" && len(line)+1+len(word) > width {
			r.writeLiteral(line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	r.writeLiteral(line)
}

// writeLiteral writes a line that is already escaped.
func (r *roffPage) writeLiteral(line string) {
	if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
		line = `\&` + line
	}
	r.WriteString(line + "\n")
}

// writeItem writes a paragraph with a heading.
func (r *roffPage) writeItem(head, text string) {
	fmt.Fprintf(r, ".TP\n.B %s\n", escapeRoff(head))
	r.writeLine(text)
}

// writeParagraphs writes paragraphs. Indented lines are written without filling.
func (r *roffPage) writeParagraphs(text string) {
	var filled, fixed []string
	end := func() {
		if len(filled) > 0 {
			r.writeLine(strings.Join(filled, " "))
		}
		if len(fixed) > 0 {
			r.WriteString(".RS 4\n.nf\n")
			for _, line := range fixed {
				r.writeLiteral(escapeRoff(line))
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

func escapeRoff(s string) string {
	return strings.NewReplacer(`\`, `\e`, "-", `\-`, "`", `\(ga`, "~", `\(ti`, "^", `\(ha`).Replace(s)
}

func lowerFirstLetter(s string) string {
	if len(s) > 1 && s[1] >= 'a' && s[1] <= 'z' {
		return strings.ToLower(s[:1]) + s[1:]
	}
	return s
}

// writeOptions writes the flags of a command, beginning with --help.
func (r *roffPage) writeOptions(flags []*kong.Flag) {
	for _, f := range flags {
		if f.Hidden {
			continue
		}
		head := f.String()
		if f.IsBool() && f.PlaceHolder != "" {
			head += "[=" + f.PlaceHolder + "]"
		}
		r.writeItem(head, f.Help)
	}
}

// overviewManualPage returns verbena.1.
func overviewManualPage(app *kong.Application, commands []*kong.Node, date, version string) string {
	var r roffPage
	r.writeTitle("verbena", "RDMA in user space", date, version)
	r.writeSection("SYNOPSIS")
	r.WriteString(".B verbena\n.RI [ flags ]\n.I command\n.RI [ arguments ]\n")
	r.writeSection("DESCRIPTION")
	r.writeLine(app.Help)
	r.writeSection("COMMANDS")
	r.writeLine("Each has a page of its own, such as verbena-run(1).")
	for _, n := range commands {
		leaves := visibleNodes(n.Children)
		if len(leaves) == 0 {
			leaves = []*kong.Node{n}
		}
		for _, leaf := range leaves {
			r.writeItem(commandUsage(leaf), leaf.Help)
		}
	}
	r.writeSection("OPTIONS")
	r.writeOptions(app.Flags)
	r.writeSection("ENVIRONMENT")
	for _, f := range app.Flags {
		for _, e := range f.Envs {
			r.writeItem(e, "The default of --"+f.Name+". "+f.Help)
		}
	}
	r.writeItem("XDG_RUNTIME_DIR", "Without --socket the control socket is below this directory, or below /tmp.")
	writeExitStatus(&r)
	r.writeSection("SEE ALSO")
	var names []string
	for _, n := range commands {
		names = append(names, fmt.Sprintf(".BR %s (1)", escapeRoff(manualPageName(n))))
	}
	r.WriteString(strings.Join(names, " ,\n") + "\n")
	return r.String()
}

func writeExitStatus(r *roffPage) {
	r.writeSection("EXIT STATUS")
	r.writeLine("0 after success, 125 after a failure. Those of a program under `verbena run` pass through; see verbena-run(1).")
}

// commandUsage returns the name of a command with its arguments.
func commandUsage(n *kong.Node) string {
	s := n.Path()
	for _, p := range n.Positional {
		s += " " + formatArgument(p)
	}
	return s
}

func formatArgument(p *kong.Positional) string {
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

// commandManualPage returns the page of a command, including the commands of a group.
func commandManualPage(app *kong.Application, n *kong.Node, date, version string) string {
	var r roffPage
	r.writeTitle(manualPageName(n), n.Help, date, version)
	group := visibleNodes(n.Children)
	leaves := group
	if len(group) == 0 {
		leaves = []*kong.Node{n}
	}
	r.writeSection("SYNOPSIS")
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
			arguments += " " + formatArgument(p)
		}
		fmt.Fprintf(&r, ".B %s\n", escapeRoff(command))
		r.writeLine(strings.TrimSpace(arguments))
	}
	r.writeSection("DESCRIPTION")
	if len(group) == 0 {
		r.writeLine(n.Help)
		body, examples, found := strings.Cut(n.Detail, "Examples:\n")
		if strings.TrimSpace(body) != "" {
			r.WriteString(".P\n")
			r.writeParagraphs(strings.TrimSpace(body))
		}
		r.writeArgumentsAndFlags(n)
		if found {
			r.writeSection("EXAMPLES")
			r.writeParagraphs(examples)
		}
	} else {
		r.writeLine(n.Help)
		for _, leaf := range group {
			fmt.Fprintf(&r, ".SS %s\n", escapeRoff(commandUsage(leaf)))
			r.writeLine(leaf.Help)
			if n.DefaultCmd == leaf {
				r.writeLine("The default, if none is named.")
			}
			if leaf.Detail != "" {
				r.WriteString(".P\n")
				r.writeParagraphs(leaf.Detail)
			}
			r.writeArgumentsAndFlags(leaf)
		}
	}
	r.writeSection("OPTIONS OF ALL COMMANDS")
	r.writeOptions(slices.DeleteFunc(slices.Clone(app.Flags), func(f *kong.Flag) bool { return f.Name == "version" }))
	writeExitStatus(&r)
	r.writeSection("SEE ALSO")
	r.WriteString(".BR verbena (1)\n")
	return r.String()
}

// writeArgumentsAndFlags writes the arguments and flags of a command.
func (r *roffPage) writeArgumentsAndFlags(n *kong.Node) {
	for _, p := range n.Positional {
		r.writeItem(formatArgument(p), p.Help)
	}
	r.writeOptions(n.Flags)
}
