package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"verbena/internal/ctl"
	"verbena/internal/fault"
	"verbena/service"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (*completionCmd) Help() string {
	return `The packages of Verbena install these scripts. Without a package, put the output where the shell looks for it, and start a
new shell:

  verbena completion bash > ~/.local/share/bash-completion/completions/verbena
  verbena completion zsh > ~/.zsh/_verbena      # a directory of fpath
  verbena completion fish > ~/.config/fish/completions/verbena.fish

The first needs the package bash-completion. Without that, add this line to ~/.bashrc:

  source <(verbena completion bash)`
}

func (c *completionCmd) Run() error {
	fmt.Print(completionScripts[c.Shell])
	return nil
}

// completionScripts holds the completion script of each shell. The scripts call verbena itself to complete a
// command line; see completion.
var completionScripts = map[string]string{
	"bash": `# bash completion of verbena
_verbena() {
    local words=() starts=() i w last='' joined line kind=none at=0
    # bash splits words at "=" and ":", and verbena does not.
    for ((i = 1; i <= COMP_CWORD; i++)); do
        w=${COMP_WORDS[i]}
        if [[ ${#words[@]} -gt 0 && ( $w == [=:]* || $last == *[=:] ) ]]; then
            words[${#words[@]}-1]+=$w
        else
            words+=("$w") starts+=("$i")
        fi
        last=$w
    done
    w=${words[${#words[@]}-1]}
    joined=''
    [[ $COMP_WORDBREAKS == *=* && $w == *=* ]] && joined=${w%"${w##*=}"}
    [[ $COMP_WORDBREAKS == *:* && $w == *:* ]] && joined=${w%"${w##*:}"}
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            :*) read -r kind at <<<"${line#:}" ;;
            *) line=${line%%$'\t'*} COMPREPLY+=("${line#"$joined"}") ;;
        esac
    done < <("${COMP_WORDS[0]}" complete-words -- "${words[@]}" 2>/dev/null)
    case $kind in
        file)
            w=${w#"$joined"}
            compopt -o filenames
            while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "$w")
            ;;
        program)
            at=${starts[at]}
            if declare -F _comp_command_offset >/dev/null; then
                _comp_command_offset "$at"
            elif declare -F _command_offset >/dev/null; then
                _command_offset "$at"
            elif [[ $COMP_CWORD -eq $at && $w != */* ]]; then
                while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -c -- "$w" | sort -u)
            else
                compopt -o filenames
                while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "$w")
            fi
            ;;
    esac
    # A flag that takes its value after "=" gets no space.
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace
    return 0
}
complete -F _verbena verbena
`,
	"zsh": `#compdef verbena
# zsh completion of verbena
_verbena() {
    local line kind=none value help
    local -a values answer
    integer at=0
    answer=("${(@f)$("${words[1]}" complete-words -- "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    for line in $answer; do
        case $line in
            :*) kind=${${line#:}%% *}; [[ $line == *' '* ]] && at=${line##* } ;;
            *)
                value=${line%%$'\t'*} help=''
                [[ $line == *$'\t'* ]] && help=${line#*$'\t'}
                values+=("${value//:/\\:}${help:+:$help}")
                ;;
        esac
    done
    (( $#values )) && _describe verbena values
    case $kind in
        file)
            [[ $PREFIX == --*=* ]] && compset -P '--*='
            _files
            ;;
        program)
            shift $at words
            shift words
            (( CURRENT -= at + 1 ))
            if (( CURRENT == 1 )); then _command_names -e; _files; else _normal; fi
            ;;
    esac
}
if [ "$funcstack[1]" = _verbena ]; then
    _verbena "$@"
else
    compdef _verbena verbena
fi
`,
	"fish": `# fish completion of verbena
function __verbena_complete
    set -l words (commandline -opc) (commandline -ct)
    for line in ($words[1] complete-words -- $words[2..] 2>/dev/null)
        set -l kind (string split ' ' -- $line)
        switch $kind[1]
            case ':file'
                set -l flag (string match -r -- '^--[^=]*=' $words[-1])
                for f in (__fish_complete_path (string replace -- "$flag" '' $words[-1]))
                    echo "$flag$f"
                end
            case ':program'
                complete -C (string join ' ' -- $words[(math $kind[2] + 2)..])
            case ':*'
            case '*'
                echo $line
        end
    end
end
complete -c verbena -f -a '(__verbena_complete)'
`,
}

type completeCmd struct {
	Words []string `arg:"" optional:"" passthrough:"" complete:"none"`
}

// Run prints candidates, one per line with a tab and a description. The last line tells the shell which candidates
// to add: ":none", ":file", or ":program N", where N is the index of the word that begins another command line.
func (c *completeCmd) Run(cl *cli, app *kong.Kong) error {
	words := c.Words
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	w := bufio.NewWriter(os.Stdout)
	printCompletions(w, app.Model.Node, words, cl.namesOfKind)
	return w.Flush()
}

// parsedCommandLine is a command line that is parsed up to the word to complete.
type parsedCommandLine struct {
	node   *kong.Node
	args   int        // number of arguments so far
	end    bool       // flags are not allowed after this word
	expect *kong.Flag // the word is the value of this flag
}

// printCompletions completes the last of the words. The function names returns the existing names of a kind, such as
// "device".
func printCompletions(w io.Writer, root *kong.Node, words []string, names func(kind string) []string) {
	if len(words) == 0 {
		words = []string{""}
	}
	last := words[len(words)-1]
	at := parsedCommandLine{node: root}
	for i, word := range words[:len(words)-1] {
		if n, ok := at.nestedCommandAt(word, i); ok {
			fmt.Fprintln(w, ":program", n)
			return
		}
		at.parseWord(word, words[i+1])
	}
	switch flag, value, joined := strings.Cut(last, "="); {
	case at.expect != nil:
		printValueCandidates(w, at.expect.Value, "", last, names)
	case !at.end && joined && strings.HasPrefix(flag, "--"):
		if f := at.findFlag(flag); f != nil && f.Tag.Get("complete") != "" || f != nil && f.Enum != "" {
			printValueCandidates(w, f.Value, flag+"=", value, names)
			return
		}
		fmt.Fprintln(w, ":none")
	case !at.end && strings.HasPrefix(last, "-"):
		for _, f := range at.allowedFlags() {
			if name := "--" + f.Name; strings.HasPrefix(name, last) {
				printCandidate(w, name, f.Help)
			}
		}
		fmt.Fprintln(w, ":none")
	default:
		at.printWordCandidates(w, len(words)-1, last, names)
	}
}

// nestedCommandAt reports whether another command line begins at this word or a later one, and the index of its first
// word.
func (c *parsedCommandLine) nestedCommandAt(word string, at int) (int, bool) {
	if c.expect != nil || len(c.node.Positional) == 0 || !c.node.Positional[0].Passthrough {
		return 0, false
	}
	if word == "--" {
		return at + 1, true
	}
	return at, !strings.HasPrefix(word, "-")
}

// parseWord parses a word.
func (c *parsedCommandLine) parseWord(word, next string) {
	switch {
	case c.expect != nil:
		c.expect = nil
		return
	case c.end || word == "-" || !strings.HasPrefix(word, "-"):
		for _, n := range c.node.Children {
			if n.Name == word && c.args == 0 {
				c.node = n
				return
			}
		}
		c.args++
	case word == "--":
		c.end = true
	case !strings.Contains(word, "="):
		f := c.findFlag(word)
		if f == nil || f.IsCounter() || len(word) > 2 && word[1] != '-' { // -pPORT includes the value
			return
		}
		// an optional value resembles a time, see outage
		if !f.IsBool() || f.PlaceHolder != "" && strings.ContainsAny(firstByte(next), "0123456789.") {
			c.expect = f
		}
	}
}

// allowedFlags returns the flags allowed at this position: the flags of the command, of its groups, and of the default
// command of a group.
func (c *parsedCommandLine) allowedFlags() (all []*kong.Flag) {
	for _, group := range c.node.AllFlags(true) {
		all = append(all, group...)
	}
	if d := c.node.DefaultCmd; d != nil {
		for _, f := range d.Flags {
			if !f.Hidden {
				all = append(all, f)
			}
		}
	}
	return all
}

// findFlag returns the flag that a word names, or nil.
func (c *parsedCommandLine) findFlag(word string) *kong.Flag {
	for _, f := range c.allowedFlags() {
		if word == "--"+f.Name || f.Short != 0 && strings.HasPrefix(word, "-"+string(f.Short)) {
			return f
		}
	}
	return nil
}

// printWordCandidates offers candidates other than flags: commands, or the value of an argument.
func (c *parsedCommandLine) printWordCandidates(w io.Writer, at int, prefix string, names func(string) []string) {
	if len(c.node.Children) > 0 && c.args == 0 {
		for _, n := range c.node.Children {
			if !n.Hidden && strings.HasPrefix(n.Name, prefix) {
				printCandidate(w, n.Name, n.Help)
			}
		}
		fmt.Fprintln(w, ":none")
		return
	}
	args := c.node.Positional
	i := min(c.args, len(args)-1)
	switch {
	case i < 0 || i < c.args && !args[i].IsCumulative():
		fmt.Fprintln(w, ":none")
	case args[i].Tag.Get("complete") == "program":
		fmt.Fprintln(w, ":program", at)
	default:
		printValueCandidates(w, args[i], "", prefix, names)
	}
}

// printValueCandidates offers the values of a flag or argument that begin with prefix. The argument before is the part
// of the word that precedes the value.
func printValueCandidates(w io.Writer, v *kong.Value, before, prefix string, names func(kind string) []string) {
	var values []string
	kind := v.Tag.Get("complete")
	switch {
	case v.Enum != "":
		values = v.EnumSlice()
	case kind == "file":
		fmt.Fprintln(w, ":file")
		return
	case strings.Contains(kind, ","):
		values = strings.Split(kind, ",")
	case kind != "none":
		values = names(kind)
	}
	for _, x := range values {
		if strings.HasPrefix(x, prefix) {
			fmt.Fprintln(w, before+replaceControlChars(x))
		}
	}
	fmt.Fprintln(w, ":none")
}

// printCandidate prints a candidate with the first sentence of its help.
func printCandidate(w io.Writer, name, help string) {
	help, _, _ = strings.Cut(help, ". ")
	fmt.Fprintf(w, "%s\t%s\n", name, strings.TrimSuffix(help, "."))
}

// namesOfKind returns the existing names of a kind: devices of the running service, users, groups or interfaces.
func (c *cli) namesOfKind(kind string) (names []string) {
	switch kind {
	case "device":
		done := make(chan []string, 1)
		go func() { done <- c.deviceNames() }()
		select {
		case names = <-done:
		case <-time.After(time.Second): // completion must not block the shell if the service does not answer
		}
	case "verb":
		names = service.VerbNames()
	case "event":
		names = service.EventNames()
	case "errno":
		names = fault.ErrnoNames()
	case "user":
		names = firstFieldsOfLines("/etc/passwd")
	case "group":
		names = firstFieldsOfLines("/etc/group")
	case "interface":
		all, _ := net.Interfaces()
		for _, i := range all {
			names = append(names, i.Name)
		}
	}
	slices.Sort(names)
	return names
}

func (c *cli) deviceNames() (names []string) {
	r, err := c.sendRequest(&ctl.Request{Op: ctl.OpDevShow})
	if err != nil {
		return nil
	}
	for _, d := range r.Devs {
		names = append(names, d.Name)
	}
	return names
}

// firstFieldsOfLines returns the first field of each line of a file such as passwd(5) or group(5).
func firstFieldsOfLines(file string) (fields []string) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		if name, _, ok := strings.Cut(line, ":"); ok && name != "" && name[0] != '#' {
			fields = append(fields, name)
		}
	}
	return fields
}
