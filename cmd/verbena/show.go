package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/alecthomas/kong"

	"verbena/internal/ctl"
	"verbena/internal/fault"
)

// printOutput prints v as JSON or as text.
func printOutput(asJSON bool, v any, text func(w io.Writer)) error {
	if asJSON {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(v)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	text(w)
	return w.Flush()
}

// replaceControlChars replaces control characters that would affect a terminal in a name that a user has chosen.
func replaceControlChars(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

type linkAddCmd struct {
	Name   string   `arg:"" help:"Name, rxe or efa followed by a number or word; any name with --personality=efa." complete:"none"`
	Addr   []string `help:"Address of the device; repeatable for more addresses of the same interface. The addresses fill the GID table from index 1." placeholder:"IP" complete:"none"`
	Netdev string   `help:"Interface; the device gets its addresses." placeholder:"IF" xor:"where" complete:"interface"`
	Wire   bool     `help:"Send every packet through a UDP socket, also to devices of this service."`

	NoProbe bool `help:"Do not retransmit before the acknowledgement timeout of the program's queue pair."`

	Personality string `help:"Kind of adapter: rxe or efa (default: as the name begins)." placeholder:"TYPE" complete:"none"`

	PCI string `name:"pci" help:"Show the device to programs as a PCI adapter: auto, or an address such as 0000:81:00.0, then options such as ,numa=1; see verbena serve --help." placeholder:"SHAPE" complete:"none" sep:"none"`
}

func (l *linkAddCmd) Run(c *cli) error {
	_, err := c.sendRequestOrStart(&ctl.Request{Op: ctl.OpLinkAdd, Link: &ctl.LinkSpec{
		Name: l.Name, Addrs: l.Addr, Netdev: l.Netdev, Wire: l.Wire, NoProbe: l.NoProbe, PCI: l.PCI,
		Personality: l.Personality}})
	return err
}

type linkDelCmd struct {
	Name string `arg:"" help:"Name of the device." complete:"device"`
}

func (l *linkDelCmd) Run(c *cli) error {
	_, err := c.sendRequest(&ctl.Request{Op: ctl.OpLinkDel, Name: l.Name})
	return err
}

type linkShowCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

func (l *linkShowCmd) Run(c *cli) error {
	r, err := c.sendRequest(&ctl.Request{Op: ctl.OpLinkShow})
	if err != nil {
		return err
	}
	if r.Links == nil {
		r.Links = []ctl.LinkInfo{}
	}
	return printOutput(l.JSON, r.Links, func(w io.Writer) {
		fmt.Fprintln(w, "NAME\tDEVICE\tNETDEV\tSTATE\tMTU\tGID\tADDRESS")
		for _, x := range r.Links {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d", x.Name, x.Uverbs, x.Netdev, x.State, x.MTU)
			for i, g := range x.GIDs {
				if i > 0 {
					fmt.Fprint(w, "\t\t\t\t")
				}
				fmt.Fprintf(w, "\t%d: %s\t%s\n", g.Index, g.GID, g.Addr)
			}
			if len(x.GIDs) == 0 {
				fmt.Fprintln(w)
			}
			if x.PCI != "" {
				fmt.Fprintf(w, "\tpci: %s\n", x.PCI)
			}
			if d := describeLinkState(&x); d != "" {
				fmt.Fprintf(w, "\tlink: %s\n", d)
			}
		}
	})
}

type resShowCmd struct {
	Users bool `help:"Print only the resources of each user, with the limits."`
	JSON  bool `name:"json" help:"Print JSON: the contexts, or with --users the resources of users."`
}

func (s *resShowCmd) Help() string {
	return `Prints the open device files with what is in them, then what each user holds of each kind, with the limit; "all" is what
all users hold together. Users see what is theirs; root and the service's user see everything. The limits are those of
"verbena serve --limit".`
}

func (s *resShowCmd) Run(c *cli) error {
	r, err := c.sendRequest(&ctl.Request{Op: ctl.OpResShow})
	if err != nil {
		return err
	}
	if r.Contexts == nil {
		r.Contexts = []ctl.ContextInfo{}
	}
	if r.Users == nil {
		r.Users = []ctl.UserInfo{}
	}
	users := func(w io.Writer) {
		fmt.Fprintln(w, "USER\tKIND\tHELD\tLIMIT")
		for _, u := range r.Users {
			name := fmt.Sprint(u.UID)
			if u.UID < 0 {
				name = "all"
			}
			for _, h := range u.Holds {
				limit := "-"
				if h.Limit > 0 {
					limit = fmt.Sprint(h.Limit)
				}
				if h.Held > 0 {
					fmt.Fprintf(w, "%s\t%s\t%d\t%s\n", name, h.Kind, h.Held, limit)
				}
			}
		}
	}
	if s.Users {
		return printOutput(s.JSON, r.Users, users)
	}
	err = printOutput(s.JSON, r.Contexts, func(w io.Writer) {
		fmt.Fprintln(w, "DEVICE\tPID\tPROCESS\tUID\tPD\tMR\tCQ\tQP\tSRQ\tPINNED")
		for _, x := range r.Contexts {
			if x.Zombie {
				x.Device += " (gone)"
			}
			fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d KiB\n", x.Device, x.PID, replaceControlChars(x.Process),
				x.UID,
				x.PDs, len(x.MRs), len(x.CQs), len(x.QPs), len(x.SRQs), x.PinnedBytes/1024)
		}
	})
	if err != nil || s.JSON {
		return err
	}
	fmt.Println()
	return printOutput(false, nil, users)
}

type statShowCmd struct {
	Dev  string `help:"Only this device." placeholder:"NAME" complete:"device"`
	All  bool   `help:"Also print counters that are 0."`
	JSON bool   `name:"json" help:"Print JSON, with all counters."`
}

func (s *statShowCmd) Help() string {
	return `The names are those of the files below /sys/class/infiniband/NAME/ports/1/hw_counters, which programs see. Those
that the kernel's rxe has too are named as there (rxe_hw_counters.c); drop_* count packets dropped without an answer, by reason,
and send_*_err why they could not leave. Of sent_pkts, sent_shortcut_pkts went to a device of the same service without the
network, and sent_probe_pkts were sent again before the timeout, to learn early what was lost (see --no-probe of serve).`
}

func (s *statShowCmd) Run(c *cli) error {
	r, err := c.sendRequest(&ctl.Request{Op: ctl.OpStatShow, Name: s.Dev})
	if err != nil {
		return err
	}
	if r.Stats == nil {
		r.Stats = []ctl.StatInfo{}
	}
	return printOutput(s.JSON, r.Stats, func(w io.Writer) {
		fmt.Fprintln(w, "DEVICE\tCOUNTER\tVALUE")
		for _, x := range r.Stats {
			for _, name := range slices.Sorted(maps.Keys(x.Counters)) {
				if n := x.Counters[name]; n > 0 || s.All {
					fmt.Fprintf(w, "%s\t%s\t%d\n", x.Dev, name, n)
				}
			}
		}
	})
}

type faultAddCmd struct {
	Dev  string          `help:"Device that sends the packets; with --verb, the device of the verb, default: all." placeholder:"NAME" complete:"device"`
	Rule packetRuleFlags `embed:""`
	Verb verbRuleFlags   `embed:""`
}

// packetRuleFlags is a fault.Rule without its Validate method, which kong would also call for rules about verbs. See
// setUpFaultFlags.
type packetRuleFlags fault.Rule

func (f *faultAddCmd) Help() string {
	return `Prints the rule's number, for "verbena fault clear". Which packets of those it sees a rule hits follows from its seed
alone, so the same seed gives the same faults. Rules act in the order in which they were added. While a device has any, its
packets take no shortcut within the service.

Examples:
  verbena fault add --dev rxe0 --drop 1% --reorder 2%
  verbena fault add --dev rxe0 --drop 100% --skip 1000 --limit 1     the 1001st packet is lost
  verbena fault add --dev rxe0 --qp 17 --rnr 10% --seed 42
  verbena fault add --dev rxe0 --tclass 106 --qp-type ud --drop 1%    one traffic class
  verbena fault add --dev rxe0 --stop --peer 10.0.0.2                 that peer is dead
  verbena fault add --verb create_cq --errno ENOMEM --nth 2           the second one fails
  verbena fault add --verb modify_qp:rtr --errno ETIMEDOUT --process server
  verbena fault add --verb reg_mr --delay 100ms`
}

func (f *faultAddCmd) Run(c *cli) error {
	rule, err := f.buildRule()
	if err != nil {
		return fmt.Errorf("fault add: %w", err)
	}
	r, err := c.sendRequestOrStart(&ctl.Request{Op: ctl.OpFaultAdd, Fault: rule})
	if err != nil {
		return err
	}
	fmt.Println(r.ID)
	return nil
}

// buildRule returns the rule that the flags describe. buildRule also validates it, so an invalid rule does not start a
// service.
func (f *faultAddCmd) buildRule() (*ctl.FaultRule, error) {
	if f.Verb.Verb != "" {
		return f.buildVerbRule()
	}
	if f.Verb != (verbRuleFlags{}) {
		return nil, errors.New("--errno, --nth, --times and --process need --verb")
	}
	if f.Dev == "" {
		return nil, errors.New("missing flags: --dev=NAME; see verbena fault add --help")
	}
	rule := fault.Rule(f.Rule)
	if !rule.HasEffect() {
		return nil, fmt.Errorf("no effect given: add %s; see verbena fault add --help", effectFlagList())
	}
	return &ctl.FaultRule{Dev: f.Dev, Rule: rule}, rule.Validate()
}

// effectFlagList returns the flags that set a kind of fault, as a list for a sentence.
func effectFlagList() string {
	var list []string
	for _, k := range fault.FlagKinds() {
		list = append(list, "--"+k.Name)
	}
	last := len(list) - 1
	return strings.Join(list[:last], ", ") + " or " + list[last]
}

// setUpFaultFlags sets the help of the flags that set a kind of fault, and orders the flags of rules.
func setUpFaultFlags(k *kong.Kong) error {
	add := commandAtPath(k.Model.Node, "fault", "add")
	if add == nil {
		return nil
	}
	order := append([]string{"dev"}, fault.MatchNames()...)
	for _, kind := range fault.FlagKinds() {
		order = append(order, kind.Name)
		flag := add.Flags[slices.IndexFunc(add.Flags, func(f *kong.Flag) bool { return f.Name == kind.Name })]
		flag.Help, flag.PlaceHolder = kind.Usage(), kind.Unit().Placeholder()
		if kind.Name == "delay" {
			flag.Help = strings.TrimSuffix(flag.Help, ".") + "; with --verb, time for which the verb waits."
		}
		flag.OrigHelp = flag.Help
	}
	orderFlags(add, append(order, "seed", "skip", "limit", "verb", "errno", "nth", "times", "process"))
	return nil
}

type faultShowCmd struct {
	Dev  string `help:"Only this device." placeholder:"NAME" complete:"device"`
	JSON bool   `name:"json" help:"Print JSON."`
}

func (f *faultShowCmd) Run(c *cli) error {
	r, err := c.sendRequest(&ctl.Request{Op: ctl.OpFaultShow, Name: f.Dev})
	if err != nil {
		return err
	}
	if r.Faults == nil {
		r.Faults = []ctl.FaultRuleState{}
	}
	return printOutput(f.JSON, r.Faults, func(w io.Writer) { writeFaultTable(w, r.Faults) })
}

// writeFaultTable writes the active rules, one per line.
func writeFaultTable(w io.Writer, rules []ctl.FaultRuleState) {
	columns := fault.CounterKinds()
	fmt.Fprint(w, "ID\tDEVICE\tRULE\tSEEN\tHIT")
	for _, k := range columns {
		fmt.Fprint(w, "\t", k.Counter)
	}
	fmt.Fprintln(w)
	for _, x := range rules {
		text := x.Rule.String()
		if x.Verb != nil {
			text = formatVerbRule(*x.Verb)
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%d\t%d", x.ID, cmp.Or(x.Dev, "-"), text, x.Seen, x.Hit)
		for _, k := range columns {
			if x.Verb != nil {
				fmt.Fprint(w, "\t-")
			} else {
				fmt.Fprintf(w, "\t%d", k.CounterValue(&x.RuleCounts))
			}
		}
		fmt.Fprintln(w)
	}
}

type faultClearCmd struct {
	ID  int    `arg:"" optional:"" help:"Number of the rule, as printed by fault show; default: all rules." complete:"none"`
	Dev string `help:"Only this device." placeholder:"NAME" complete:"device"`
}

func (f *faultClearCmd) Run(c *cli) error {
	_, err := c.sendRequest(&ctl.Request{Op: ctl.OpFaultClear, Name: f.Dev, ID: f.ID})
	return err
}
