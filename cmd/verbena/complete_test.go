package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
)

// commandModel returns the command-line model that --help also uses.
func commandModel() *kong.Application {
	var c cli
	return newParser(&c).Model
}

// forEachCommand calls f for the root command, and for each visible command and group.
func forEachCommand(n *kong.Node, f func(n *kong.Node)) {
	f(n)
	for _, child := range visibleNodes(n.Children) {
		forEachCommand(child, f)
	}
}

// TestValuesHaveCompletionTags tests that each flag and argument with a value has a valid completion tag.
func TestValuesHaveCompletionTags(t *testing.T) {
	forEachCommand(commandModel().Node, func(n *kong.Node) {
		for _, v := range n.Values() {
			if v.Flag != nil && (v.Flag.Hidden || v.IsBool() && v.Flag.PlaceHolder == "") || v.Enum != "" {
				continue
			}
			switch kind := v.Tag.Get("complete"); {
			case kind == "none", kind == "file", kind == "program", kind == "device", kind == "user", kind == "group",
				kind == "interface", kind == "verb", kind == "event", kind == "errno":
			case strings.Contains(kind, ","):
			default:
				t.Errorf("%s: %s: got tag complete:%q, want none, file, device, a list of words, ...", n.FullPath(),
					v.ShortSummary(), kind)
			}
		}
	})
}

func TestCompleteCandidates(t *testing.T) {
	names := func(kind string) []string {
		return map[string][]string{"device": {"rxe0", "rxe1"}, "user": {"root"}, "interface": {"lo"}}[kind]
	}
	for line, want := range map[string]string{
		"dev re":                           "reset\n:none",
		"dev reset ":                       "rxe0\nrxe1\n:none",
		"dev reset rxe1":                   "rxe1\n:none",
		"dev reset rxe0 ":                  ":none",
		"dev reset --unreachable ":         "rxe0\nrxe1\n:none",
		"dev reset --unreachable 2s ":      "rxe0\nrxe1\n:none",
		"dev reset --unreachable=2s rxe":   "rxe0\nrxe1\n:none",
		"dev reset --at ":                  "registration\ncompletion\n:none",
		"dev reset --at=c":                 "--at=completion\n:none",
		"dev reset -- --at=c":              ":none",
		"dev --js":                         "--json\n:none", // a flag of the default command
		"capture -w ":                      ":file",
		"capture --write=":                 ":file",
		"capture -w out --dev ":            "rxe0\nrxe1\n:none",
		"capture verify a.pcapng ":         ":file",
		"--socket ":                        ":file",
		"--socket /run/x dev pl":           "plug\n:none",
		"--service-user ro":                "root\n:none",
		"link add rxe5 --netdev ":          "lo\n:none",
		"perf --test=b":                    "--test=bandwidth\n--test=both\n:none",
		"pingpong -d ":                     "rxe0\nrxe1\n:none",
		"pingpong -p 18515 --typ":          "--type\n:none",
		"pingpong -p18515 -d ":             "rxe0\nrxe1\n:none",
		"completion ":                      "bash\nzsh\nfish\n:none",
		"run -- ":                          ":program 2",
		"run --private --link rxe0=lo -- ": ":program 5",
		"run --private -- ls -":            ":program 3",
		"run ls -":                         ":program 1",
		"run ls":                           ":program 1",
		"run --pri":                        "--private\n:none",
		"--socket s run --trace -- x -y z": ":program 5",
		"nonsense --fla":                   ":none",
		"nonsense ":                        ":none",
	} {
		var b strings.Builder
		printCompletions(&b, commandModel().Node, strings.Split(line, " "), names)
		var got []string
		for l := range strings.Lines(b.String()) {
			candidate, _, _ := strings.Cut(strings.TrimSuffix(l, "\n"), "\t")
			got = append(got, candidate)
		}
		if s := strings.Join(got, "\n"); s != want {
			t.Errorf("%q: got %q, want %q", line, s, want)
		}
	}
	var b strings.Builder
	printCompletions(&b, commandModel().Node, nil, names)
	forEachCommand(commandModel().Node, func(n *kong.Node) {
		if n.Parent != nil && n.Parent.Type == kong.ApplicationNode && !strings.Contains(b.String(), n.Name+"\t"+n.Help[:7]) {
			t.Errorf("candidates: %s is missing", n.Name)
		}
	})
	if strings.Contains(b.String(), "complete-words") {
		t.Error("candidates: got hidden commands, want none")
	}
}

// runInShell runs a script in a shell whose `verbena` is this program, with a service that has the device rxe0.
func runInShell(t *testing.T, shell, addr, script string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("the shell runs verbena for each line, which takes seconds")
	}
	path, err := exec.LookPath(shell)
	if err != nil {
		t.Skipf("%s is not installed", shell)
	}
	dir := t.TempDir()
	v := commandsForSocket(t, filepath.Join(dir, "sock"))
	mustRun(t, v("serve", "--daemon", "--link", "rxe0="+addr))
	completion := filepath.Join(dir, "completion")
	if err := os.WriteFile(completion, []byte(mustRun(t, v("completion", shell))), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(v().Path, filepath.Join(dir, "verbena")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, path, "-c", script)
	c.WaitDelay = time.Second
	c.Dir = dir
	c.Env = append(os.Environ(), "SCRIPT="+completion, "HOME="+dir, "PATH="+dir+":"+os.Getenv("PATH"), "TERM=dumb",
		"VERBENA_SOCKET="+filepath.Join(dir, "sock"))
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", shell, err, out)
	}
	return string(out)
}

func TestBashCompletion(t *testing.T) {
	got := runInShell(t, "bash", "127.91.50.1", `
		shopt -s extglob
		COMP_WORDBREAKS=$' \t\n"\'><=;|&(:'
		source "$SCRIPT"
		compopt() { :; }
		touch out.pcapng; mkdir outdir
		try() {
			COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
			_verbena
			echo "${COMPREPLY[*]}"
		}
		try verbena dev re
		try verbena dev reset ''
		try ./verbena dev reset --at = c
		try verbena dev reset --at = ''
		try verbena capture -w out
		try verbena capture --write = out.
		try verbena run -- verben
		try verbena run -- ls out.
		try verbena --socket
		_command_offset() { COMPREPLY=("from ${COMP_WORDS[$1]}"); } # of the package bash-completion
		try verbena run --private --link rxe0 = lo -- ls out.
	`)
	want := "reset\nrxe0\ncompletion\nregistration completion\nout.pcapng outdir\nout.pcapng\nverbena\nout.pcapng\n--socket\nfrom ls\n"
	if got != want && got != strings.Replace(want, "out.pcapng outdir", "outdir out.pcapng", 1) {
		t.Errorf("got\n%s, want\n%s", got, want)
	}
}

func TestZshCompletion(t *testing.T) {
	// The shell runs in a pseudo-terminal. The script types command lines, completes them with a key, and reads the
	// completed lines.
	got := runInShell(t, "zsh", "127.91.50.2", `
		zmodload zsh/zpty
		touch out.pcapng
		zpty z zsh -f -i
		zpty -w z 'PROMPT=; autoload -Uz compinit; compinit -u -D; source $SCRIPT'
		zpty -w z 'shown() { zle expand-or-complete; print -r -- "<$BUFFER>"; BUFFER=; }; zle -N shown; bindkey "^X" shown; echo RE""ADY'
		zpty -r -m z line '*READY*'
		for words in 'dev re' 'dev reset rx' 'dev reset --at=c' 'dev reset --at reg' 'capture -w out' 'run -- ls out'; do
			zpty -w -n z "verbena $words"$'\x18'
			zpty -r -m z line '*<*>*'
			line=${line##*<}
			print -r -- ${line%%>*}
		done
		zpty -d z
	`)
	want := "verbena dev reset \nverbena dev reset rxe0 \nverbena dev reset --at=completion \nverbena dev reset --at registration \n" +
		"verbena capture -w out.pcapng \nverbena run -- ls out.pcapng \n"
	if got != want {
		t.Errorf("got\n%s, want\n%s", got, want)
	}
}

func TestFishCompletion(t *testing.T) {
	got := runInShell(t, "fish", "127.91.50.3", `
		source $SCRIPT
		touch out.pcapng
		for line in 'verbena dev re' 'verbena dev reset ' 'verbena dev reset --at=c' 'verbena capture -w out' 'verbena capture --write=out' 'verbena run -- verben' 'verbena run -- ls out'
			complete -C $line | string replace -r '\t.*' ''
		end
		complete -C 'verbena dev res'
	`)
	want := "reset\nrxe0\n--at=completion\nout.pcapng\n--write=out.pcapng\nverbena\nout.pcapng\nreset\tReset a device: programs that use it get the fatal event and errors, and new programs get the recovered device\n"
	if got != want {
		t.Errorf("got\n%s, want\n%s", got, want)
	}
}

// TestManualPagesDescribeCommands tests that the manual pages describe each command and flag, and that man formatters
// accept the pages.
func TestManualPagesDescribeCommands(t *testing.T) {
	pages := manualPages(commandModel(), "2026-11-24", "verbena 1.2.3")
	dir := t.TempDir()
	var files []string
	for name, text := range pages {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	forEachCommand(commandModel().Node, func(n *kong.Node) {
		page := "verbena.1"
		if n.Type == kong.CommandNode {
			top := n
			for top.Parent.Type == kong.CommandNode {
				top = top.Parent
			}
			page = manualPageName(top) + ".1"
		}
		for _, f := range n.Flags {
			if text := escapeRoff("--" + f.Name); !f.Hidden && !strings.Contains(pages[page], text) {
				t.Errorf("%s: got no %s of %s", page, text, n.FullPath())
			}
		}
		if !strings.Contains(pages[page], escapeRoff(n.Path())) {
			t.Errorf("%s does not have %s", page, n.FullPath())
		}
	})
	mandoc, err := exec.LookPath("mandoc")
	if err != nil {
		t.Skip("mandoc is not installed")
	}
	if out, err := exec.Command(mandoc, append([]string{"-T", "lint", "-W", "style"},
		files...)...).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("mandoc -T lint: %v\n%s", err, out)
	}
	out, err := exec.Command(mandoc, "-T", "ascii", filepath.Join(dir, "verbena-run.1")).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Exit code: the program") {
		t.Errorf("verbena-run(1): %v\n%s", err, out)
	}
}

func TestRoffTextIsEscaped(t *testing.T) {
	var r roffPage
	r.writeLine(`'quoted' \ --flag`)
	r.writeParagraphs("One.\n\n  .code -x\n\nTwo.")
	want := []string{`\&'quoted' \e \-\-flag`, "One.", ".P", ".RS 4", ".nf", `\&.code \-x`, ".fi", ".RE", ".P", "Two."}
	if got := strings.Split(strings.TrimSpace(r.String()), "\n"); !reflect.DeepEqual(got, want) {
		t.Errorf("roff: got %q, want %q", got, want)
	}
}
