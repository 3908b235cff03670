package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"verbena/internal/ctl"
	"verbena/link"
)

// output prints v as JSON, or as text.
func output(asJSON bool, v any, text func(w io.Writer)) error {
	if asJSON {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(v)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	text(w)
	return w.Flush()
}

// printable replaces what would do something to a terminal in a name that a user has chosen.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

type linkAddCmd struct {
	Name   string   `arg:"" help:"Name, rxe followed by a number or word." complete:"none"`
	Addr   []string `help:"Address of the device; repeat it for more, all of one interface. They fill the GID table from index 1." placeholder:"IP" complete:"none"`
	Netdev string   `help:"Interface whose addresses the device gets." placeholder:"IF" xor:"where" complete:"interface"`
	Wire   bool     `help:"Send every packet through a UDP socket, also to devices of this service."`

	NoProbe bool `help:"Send nothing again before the acknowledgement timeout of the program's queue pair."`
}

func (l *linkAddCmd) Run(c *cli) error {
	_, err := c.askStarting(&ctl.Request{Op: ctl.OpLinkAdd, Link: &ctl.LinkSpec{
		Name: l.Name, Addrs: l.Addr, Netdev: l.Netdev, Wire: l.Wire, NoProbe: l.NoProbe}})
	return err
}

type linkDelCmd struct {
	Name string `arg:"" help:"Name of the device." complete:"device"`
}

func (l *linkDelCmd) Run(c *cli) error {
	_, err := c.ask(&ctl.Request{Op: ctl.OpLinkDel, Name: l.Name})
	return err
}

type linkShowCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

func (l *linkShowCmd) Run(c *cli) error {
	r, err := c.ask(&ctl.Request{Op: ctl.OpLinkShow})
	if err != nil {
		return err
	}
	if r.Links == nil {
		r.Links = []ctl.LinkInfo{}
	}
	return output(l.JSON, r.Links, func(w io.Writer) {
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
			if d := linkDetails(&x); d != "" {
				fmt.Fprintf(w, "\tlink: %s\n", d)
			}
		}
	})
}

type resShowCmd struct {
	Users bool `help:"Print only what each user holds, with the limits."`
	JSON  bool `name:"json" help:"Print JSON: the contexts, or with --users the users."`
}

func (s *resShowCmd) Help() string {
	return `Prints the open device files with what is in them, then what each user holds of each kind, with the limit; "all" is what
all users hold together. Users see what is theirs; root and the service's user see everything. The limits are those of
"verbena serve --limit".`
}

func (s *resShowCmd) Run(c *cli) error {
	r, err := c.ask(&ctl.Request{Op: ctl.OpResShow})
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
		return output(s.JSON, r.Users, users)
	}
	err = output(s.JSON, r.Contexts, func(w io.Writer) {
		fmt.Fprintln(w, "DEVICE\tPID\tPROCESS\tUID\tPD\tMR\tCQ\tQP\tSRQ\tPINNED")
		for _, x := range r.Contexts {
			if x.Zombie {
				x.Device += " (gone)"
			}
			fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d KiB\n", x.Device, x.PID, printable(x.Process), x.UID,
				x.PDs, len(x.MRs), len(x.CQs), len(x.QPs), len(x.SRQs), x.PinnedBytes/1024)
		}
	})
	if err != nil || s.JSON {
		return err
	}
	fmt.Println()
	return output(false, nil, users)
}

type statShowCmd struct {
	Dev  string `help:"Only this device." placeholder:"NAME" complete:"device"`
	All  bool   `help:"Print counters that are 0, too."`
	JSON bool   `name:"json" help:"Print JSON, with all counters."`
}

func (s *statShowCmd) Help() string {
	return `The names are those of the files below /sys/class/infiniband/NAME/ports/1/hw_counters, which programs see. Those
that the kernel's rxe has too are named as there (rxe_hw_counters.c); drop_* count packets dropped without an answer, by reason,
and send_*_err why they could not leave. Of sent_pkts, sent_shortcut_pkts went to a device of the same service without the
network, and sent_probe_pkts were sent again before the timeout, to learn early what was lost (see --no-probe of serve).`
}

func (s *statShowCmd) Run(c *cli) error {
	r, err := c.ask(&ctl.Request{Op: ctl.OpStatShow, Name: s.Dev})
	if err != nil {
		return err
	}
	if r.Stats == nil {
		r.Stats = []ctl.StatInfo{}
	}
	return output(s.JSON, r.Stats, func(w io.Writer) {
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
	Dev       string        `help:"Device whose sending is disturbed; with --verb, the device of the verb, and all if it is left out." placeholder:"NAME" complete:"device"`
	QP        uint32        `name:"qp" help:"Only packets that this queue pair sends, or is to get." placeholder:"N" complete:"none"`
	Peer      netip.Addr    `help:"Only packets to this address." placeholder:"IP" complete:"none"`
	Drop      percent       `help:"Share of packets to drop, such as 1% or 0.01." placeholder:"P" complete:"none"`
	Duplicate percent       `help:"Share of packets to send twice." placeholder:"P" complete:"none"`
	Corrupt   percent       `help:"Share of packets to flip a bit in, after the ICRC was computed." placeholder:"P" complete:"none"`
	Reorder   percent       `help:"Share of packets to hold back behind later ones." placeholder:"P" complete:"none"`
	Delay     time.Duration `help:"Time to hold every packet, such as 50us; with --verb, time for which the verb waits." placeholder:"D" complete:"none"`
	Jitter    time.Duration `help:"Up to so much more delay, at random." placeholder:"D" complete:"none"`
	RNR       percent       `name:"rnr" help:"Share of messages for the device to answer by an RNR NAK, as if no receive were posted. In a rule of its own." placeholder:"P" complete:"none"`
	Stop      bool          `help:"Drop every packet, in either direction: the peer seems dead. In a rule of its own."`
	Seed      uint64        `help:"Seed of the rule's decisions; default: by the seed of the service." placeholder:"N" complete:"none"`
	Skip      uint64        `help:"Leave the first N packets alone." placeholder:"N" complete:"none"`
	Limit     uint64        `help:"Act on the N packets after those only." placeholder:"N" complete:"none"`
	verbFlags
}

func (f *faultAddCmd) Help() string {
	return `Prints the rule's number, for "verbena fault clear". Which packets of those it sees a rule hits follows from its seed
alone, so the same seed gives the same faults. Rules act in the order in which they were added. While a device has any, its
packets take no shortcut within the service.

Examples:
  verbena fault add --dev rxe0 --drop 1% --reorder 2%
  verbena fault add --dev rxe0 --drop 100% --skip 1000 --limit 1     the 1001st packet is lost
  verbena fault add --dev rxe0 --qp 17 --rnr 10% --seed 42
  verbena fault add --dev rxe0 --stop --peer 10.0.0.2                 that peer is dead
  verbena fault add --verb create_cq --errno ENOMEM --nth 2           the second one fails
  verbena fault add --verb modify_qp:rtr --errno ETIMEDOUT --process server
  verbena fault add --verb reg_mr --delay 100ms`
}

func (f *faultAddCmd) Run(c *cli) error {
	if f.Verb != "" {
		return f.addVerb(c)
	}
	if f.verbFlags != (verbFlags{}) {
		return errors.New("fault add: --errno, --nth, --times and --process go with --verb")
	}
	if f.Dev == "" {
		return errors.New("fault add: missing flags: --dev=NAME; see verbena fault add --help")
	}
	rule := link.Rule{
		QP: f.QP, Peer: f.Peer, Drop: float64(f.Drop), Duplicate: float64(f.Duplicate), Corrupt: float64(f.Corrupt),
		Reorder: float64(f.Reorder), Delay: f.Delay, Jitter: f.Jitter, RNR: float64(f.RNR), Stop: f.Stop,
		Seed: f.Seed, Skip: f.Skip, Limit: f.Limit}
	effects := rule
	effects.QP, effects.Peer, effects.Seed, effects.Skip, effects.Limit = 0, netip.Addr{}, 0, 0, 0
	if effects == (link.Rule{}) {
		return errors.New("fault add: no effect given: add --drop, --duplicate, --corrupt, --reorder, --delay, --jitter, --rnr " +
			"or --stop; see verbena fault add --help")
	}
	if err := rule.Validate(); err != nil { // before a service is started for it
		return fmt.Errorf("fault add: %w", err)
	}
	r, err := c.askStarting(&ctl.Request{Op: ctl.OpFaultAdd, Fault: &ctl.FaultRule{Dev: f.Dev, Rule: ctl.Rule(rule)}})
	if err != nil {
		return err
	}
	fmt.Println(r.ID)
	return nil
}

type faultShowCmd struct {
	Dev  string `help:"Only this device." placeholder:"NAME" complete:"device"`
	JSON bool   `name:"json" help:"Print JSON."`
}

func (f *faultShowCmd) Run(c *cli) error {
	r, err := c.ask(&ctl.Request{Op: ctl.OpFaultShow, Name: f.Dev})
	if err != nil {
		return err
	}
	if r.Faults == nil {
		r.Faults = []ctl.FaultRuleState{}
	}
	return output(f.JSON, r.Faults, func(w io.Writer) {
		fmt.Fprintln(w, "ID\tDEVICE\tRULE\tSEEN\tHIT\tDROPPED\tDUPLICATED\tCORRUPTED\tDELAYED\tREORDERED\tRNR")
		for _, x := range r.Faults {
			if x.Verb != nil {
				fmt.Fprintf(w, "%d\t%s\t%s\t%d\t%d\t-\t-\t-\t-\t-\t-\n", x.ID, cmp.Or(x.Dev, "-"), verbRule(x.Verb), x.Seen, x.Hit)
				continue
			}
			fmt.Fprintf(w, "%d\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", x.ID, x.Dev, link.Rule(x.Rule),
				x.Seen, x.Hit, x.Dropped, x.Duplicated, x.Corrupted, x.Delayed, x.Reordered, x.NotReady)
		}
	})
}

type faultClearCmd struct {
	ID  int    `arg:"" optional:"" help:"Number of the rule, as fault show has it; default: all rules." complete:"none"`
	Dev string `help:"Only this device." placeholder:"NAME" complete:"device"`
}

func (f *faultClearCmd) Run(c *cli) error {
	_, err := c.ask(&ctl.Request{Op: ctl.OpFaultClear, Name: f.Dev, ID: f.ID})
	return err
}

// percent is a share, written as 1% or as 0.01.
type percent float64

func (p *percent) UnmarshalText(b []byte) error {
	text, scale := string(b), 1.0
	if s, ok := strings.CutSuffix(text, "%"); ok {
		text, scale = s, 0.01
	}
	var v float64
	if _, err := fmt.Sscanf(text+"\n", "%g\n", &v); err != nil {
		return fmt.Errorf("%q is not a share: write 1%% or 0.01", b)
	}
	if v *= scale; v < 0 || v > 1 {
		return fmt.Errorf("%q is not a share between 0 and 100%%", b)
	}
	*p = percent(v)
	return nil
}
