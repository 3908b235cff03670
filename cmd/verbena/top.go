package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl"
)

type topCmd struct {
	Interval time.Duration `short:"d" help:"Interval between two updates." default:"1s" placeholder:"D" complete:"none"`
	Count    int           `short:"n" help:"End after N updates; 0: end with q or Ctrl-C." default:"0" placeholder:"N" complete:"none"`
	Batch    bool          `short:"b" help:"Print updates one below the other, as is done without a terminal."`
}

func (t *topCmd) Help() string {
	return `Shows the devices of the running service with what they send and get each second, retransmissions, drops and resets, the
processes that have them open, and the queue pairs that are in trouble. RETRY/S counts what was sent again after a time-out, a NAK
or an RNR NAK.

Examples:
  verbena top
  verbena top -b -n 2 -d 5s > load.txt`
}

// minUpdateInterval limits the load that updates put on the service.
const minUpdateInterval = 100 * time.Millisecond

func (t *topCmd) Run(c *cli) error {
	if t.Interval < minUpdateInterval {
		return fmt.Errorf("top: --interval %v is less than %v", t.Interval, minUpdateInterval)
	}
	if t.Count < 0 {
		return fmt.Errorf("top: --count %d is negative", t.Count)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	var s *screen
	if !t.Batch {
		s = openScreen(os.Stdin, os.Stdout)
		defer s.close()
	}
	var before *serviceSnapshot
	tick := time.NewTicker(t.Interval)
	defer tick.Stop()
	for n := 1; ; n++ {
		now, err := c.takeSnapshot()
		if err != nil {
			return err
		}
		if s == nil {
			io.WriteString(os.Stdout, strings.Join(now.formatLines(before), "\n")+"\n\n")
		} else {
			s.draw(now.formatLines(before))
		}
		if before = now; n == t.Count {
			return nil
		}
		select {
		case <-tick.C:
		case <-s.quitKey():
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// serviceSnapshot is a snapshot of a service's state.
type serviceSnapshot struct {
	at       time.Time
	devs     []ctl.DevInfo
	links    map[string]ctl.LinkInfo
	stats    map[string]map[string]uint64
	contexts []ctl.ContextInfo
	qps      []ctl.QPStatusInfo
	rules    int
}

// takeSnapshot queries the running service and returns a snapshot of its state.
func (c *cli) takeSnapshot() (*serviceSnapshot, error) {
	loc, err := c.serviceLocation()
	if err != nil {
		return nil, err
	}
	client, err := ctl.Dial(loc)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	l := &serviceSnapshot{at: time.Now(), links: map[string]ctl.LinkInfo{}, stats: map[string]map[string]uint64{}}
	for _, op := range []ctl.Op{ctl.OpDevShow, ctl.OpLinkShow, ctl.OpStatShow, ctl.OpResShow, ctl.OpQPShow,
		ctl.OpFaultShow} {
		r, err := client.Do(&ctl.Request{Op: op})
		if err != nil {
			return nil, err
		}
		switch op {
		case ctl.OpDevShow:
			l.devs = r.Devs
		case ctl.OpLinkShow:
			for _, x := range r.Links {
				l.links[x.Name] = x
			}
		case ctl.OpStatShow:
			for _, x := range r.Stats {
				l.stats[x.Dev] = x.Counters
			}
		case ctl.OpResShow:
			l.contexts = r.Contexts
		case ctl.OpQPShow:
			l.qps = r.QPs
		case ctl.OpFaultShow:
			l.rules = len(r.Faults)
		}
	}
	return l, nil
}

// formatLines returns the lines to print, with rates since the snapshot before, which is nil for the first snapshot.
func (l *serviceSnapshot) formatLines(before *serviceSnapshot) []string {
	var b strings.Builder
	processes := map[int]bool{}
	for _, c := range l.contexts {
		processes[c.PID] = true
	}
	fmt.Fprintf(&b, "verbena top  %s  %s, %s, %s, %s\n\n", l.at.Format(time.TimeOnly), formatCount(len(l.devs), "device"),
		formatCount(len(processes), "process"),
		formatCount(len(l.qps), "queue pair"), formatCount(l.rules, "fault rule"))
	table := func(rows [][]string) {
		w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
		for _, r := range rows {
			fmt.Fprintln(w, strings.Join(r, "\t"))
		}
		w.Flush()
	}
	qps := map[string]int{}
	for _, q := range l.qps {
		qps[q.Device]++
	}
	rows := [][]string{{"DEVICE", "STATE", "PORT", "TX/S", "RX/S", "RETRY/S", "DROP/S", "QPS", "PROGRAMS", "RESETS",
		"LINK"}}
	for _, d := range l.devs {
		x := l.links[d.Name]
		port := "down"
		if x.State == "ACTIVE" {
			port = "up"
		}
		state := d.Device
		if d.State != "running" {
			state = d.State
		} else if d.Hardware != "running" {
			state = d.Hardware
		}
		rows = append(rows, []string{d.Name, state, port,
			l.counterRate(before, d.Name, "sent_pkts"), l.counterRate(before, d.Name, "rcvd_pkts"),
			l.counterRate(before, d.Name, "completer_retry_err", "rcvd_seq_err", "rcvd_rnr_err"), l.counterRate(before, d.Name,
				"drop_"),
			strconv.Itoa(qps[d.Name]), strconv.Itoa(d.Contexts), strconv.Itoa(d.Resets), describeLinkState(&x)})
	}
	table(rows)
	if len(l.contexts) > 0 {
		b.WriteByte('\n')
		rows = [][]string{{"PROCESS", "PID", "USER", "DEVICE", "QPS", "CQS", "MRS", "PINNED", ""}}
		contexts := slices.Clone(l.contexts)
		slices.SortStableFunc(contexts, func(a, b ctl.ContextInfo) int {
			return cmp.Or(cmp.Compare(len(b.QPs), len(a.QPs)), cmp.Compare(a.PID, b.PID), cmp.Compare(a.Device, b.Device))
		})
		for _, c := range contexts {
			note := ""
			if c.Zombie {
				note = "zombie: its device has gone"
			}
			rows = append(rows, []string{replaceControlChars(c.Process), strconv.Itoa(c.PID), userName(c.UID), c.Device,
				strconv.Itoa(len(c.QPs)),
				strconv.Itoa(len(c.CQs)), strconv.Itoa(len(c.MRs)), formatBinary(c.PinnedBytes), note})
		}
		table(rows)
	}
	if bad := l.qpProblems(before); len(bad) > 0 {
		b.WriteByte('\n')
		rows = [][]string{{"QUEUE PAIR", "DEVICE", "TYPE", "STATE", "PEER", "IN FLIGHT", "RETRIES LEFT", ""}}
		for _, q := range bad {
			rows = append(rows, []string{strconv.FormatUint(uint64(q.Num), 10), q.Device, q.Type, q.State, q.Peer,
				strconv.Itoa(q.InFlight), strconv.Itoa(int(q.Retries)), q.why})
		}
		table(rows)
	}
	return strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
}

// qpProblem is a queue pair with a problem, and the problem.
type qpProblem struct {
	ctl.QPStatusInfo
	why string
}

// qpProblems returns the queue pairs that are in an error state, wait for a program's memory, or have had packets in
// flight without an acknowledgement since the previous snapshot.
func (l *serviceSnapshot) qpProblems(before *serviceSnapshot) (list []qpProblem) {
	for _, q := range l.qps {
		why := ""
		switch {
		case q.State == "ERR" || q.State == "SQE":
			why = "failed"
		case q.Slow:
			why = "the program's memory does not answer"
		case q.InFlight > 0 && before != nil && slices.ContainsFunc(before.qps, func(o ctl.QPStatusInfo) bool {
			return o.Device == q.Device && o.Num == q.Num && o.InFlight > 0 && o.Unacknowledged == q.Unacknowledged
		}):
			why = "nothing is acknowledged"
		default:
			continue
		}
		list = append(list, qpProblem{q, why})
	}
	return list
}

// counterRate returns the increase per second of the sum of a device's counters since the previous snapshot. A counter
// name that ends in _ is a prefix.
func (l *serviceSnapshot) counterRate(before *serviceSnapshot, dev string, names ...string) string {
	if before == nil || before.stats[dev] == nil || l.stats[dev] == nil {
		return "-"
	}
	sum := func(c map[string]uint64) (n uint64) {
		for name, v := range c {
			if slices.ContainsFunc(names, func(want string) bool {
				return name == want || strings.HasSuffix(want, "_") && strings.HasPrefix(name, want)
			}) {
				n += v
			}
		}
		return n
	}
	a, b, d := sum(before.stats[dev]), sum(l.stats[dev]), l.at.Sub(before.at).Seconds()
	if b < a || d <= 0 {
		return "-" // the device was replaced since the previous snapshot
	}
	return formatDecimal(float64(b-a) / d)
}

// formatDecimal formats a number with a decimal prefix, such as 12.3k.
func formatDecimal(v float64) string {
	for _, u := range []struct {
		n    float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= u.n {
			return fmt.Sprintf("%.1f%s", v/u.n, u.name)
		}
	}
	return fmt.Sprintf("%.0f", v)
}

// formatBinary formats a number of bytes with a binary prefix, such as 64K.
func formatBinary(n uint64) string {
	for i, u := range []string{"T", "G", "M", "K"} {
		if unit := uint64(1) << (10 * (4 - i)); n >= unit {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(n)/float64(unit)), ".0") + u
		}
	}
	return strconv.FormatUint(n, 10)
}

func formatCount(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if strings.HasSuffix(what, "s") {
		return fmt.Sprintf("%d %ses", n, what)
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return replaceControlChars(u.Username)
	}
	return strconv.Itoa(uid)
}

// screen is a terminal that shows one snapshot at a time, and restores its former content at the end.
type screen struct {
	in, out *os.File
	saved   *unix.Termios
	key     chan struct{}
}

// openScreen returns nil unless both the input and the output are a terminal.
func openScreen(in, out *os.File) *screen {
	if _, err := unix.IoctlGetTermios(int(out.Fd()), unix.TCGETS); err != nil {
		return nil
	}
	t, err := unix.IoctlGetTermios(int(in.Fd()), unix.TCGETS)
	if err != nil {
		return nil
	}
	s := &screen{in: in, out: out, saved: t, key: make(chan struct{})}
	raw := *t
	raw.Lflag &^= unix.ICANON | unix.ECHO
	if unix.IoctlSetTermios(int(in.Fd()), unix.TCSETS, &raw) != nil {
		return nil
	}
	io.WriteString(out, "\x1b[?1049h\x1b[?25l")
	go func() {
		for b := make([]byte, 1); ; {
			n, err := in.Read(b)
			if err != nil && !errors.Is(err, syscall.EINTR) || n == 1 && (b[0] == 'q' || b[0] == 'Q') {
				close(s.key)
				return
			}
		}
	}()
	return s
}

// quitKey returns a channel that is closed when the user presses q, or nil without a screen.
func (s *screen) quitKey() <-chan struct{} {
	if s == nil {
		return nil
	}
	return s.key
}

func (s *screen) close() {
	if s != nil {
		_ = unix.IoctlSetTermios(int(s.in.Fd()), unix.TCSETS, s.saved)
		io.WriteString(s.out, "\x1b[?25h\x1b[?1049l")
	}
}

// draw prints the lines that fit on the screen.
func (s *screen) draw(lines []string) {
	width, height := 80, 24
	if w, err := unix.IoctlGetWinsize(int(s.out.Fd()), unix.TIOCGWINSZ); err == nil && w.Col > 0 && w.Row > 0 {
		width, height = int(w.Col), int(w.Row)
	}
	io.WriteString(s.out, renderFrame(lines, width, height))
}

// renderFrame returns the text that replaces the content of a screen with lines. renderFrame prints table headings in
// bold.
func renderFrame(lines []string, width, height int) string {
	var b strings.Builder
	b.WriteString("\x1b[H")
	if more := len(lines) - (height - 1); more > 0 {
		lines = append(slices.Clone(lines[:max(height-2, 0)]), fmt.Sprintf("… %d more lines", more+1))
	}
	for i, l := range append(lines, "q quits") {
		if i > 0 {
			b.WriteString("\r\n")
		}
		if r := []rune(l); len(r) > width {
			l = string(r[:width])
		}
		if title := i > 0 && l != "" && l == strings.ToUpper(l) &&
			strings.ContainsAny(l, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"); title || i == 0 {
			l = "\x1b[1m" + l + "\x1b[0m"
		}
		b.WriteString(l + "\x1b[K")
	}
	b.WriteString("\x1b[J")
	return b.String()
}
