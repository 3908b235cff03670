package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"verbena/internal/ctl"
	"verbena/internal/fault"
)

// action is a change that the page offers. The command, the form on the page, and the check of its values derive from
// the fields.
type action struct {
	Name    string  `json:"name"`
	Command string  `json:"command"` // the command's name, such as "link set"
	Title   string  `json:"title"`
	Fields  []field `json:"fields"`
	request func(values) (*ctl.Request, error)
}

// field is an argument or a flag of an action's command.
type field struct {
	Name        string   `json:"name"`
	Help        string   `json:"help"`
	Placeholder string   `json:"placeholder,omitempty"`
	Argument    bool     `json:"argument,omitempty"` // no flag; the arguments come first, in order
	Switch      bool     `json:"switch,omitempty"`   // a flag without a value; its value is "true"
	Device      bool     `json:"device,omitempty"`   // the name of a device
	Needed      bool     `json:"needed,omitempty"`
	Choices     []string `json:"choices,omitempty"` // suggested values
}

// actions lists the changes that the page offers.
var actions = []action{
	{"link", "link set", "Change the link", slices.Concat(
		[]field{deviceArgument, {Name: "state", Argument: true, Choices: []string{"up", "down", "flap", "flap=5s"},
			Help: "up, down, or flap[=DURATION]: down, and up again after DURATION; default: 1s."}},
		fieldsOf(fault.Shape{})), linkRequest},
	{"reset", "dev reset", "Reset", []field{deviceArgument,
		{Name: "unreachable", Placeholder: "D", Help: "Disconnect the hardware for a time, such as 2s."},
		{Name: "no-flush", Switch: true, Help: "Give programs no completions for outstanding requests."}}, resetRequest},
	{"unplug", "dev unplug", "Unplug", []field{deviceArgument}, nameRequest(ctl.OpDevUnplug)},
	{"plug", "dev plug", "Plug in", []field{deviceArgument}, nameRequest(ctl.OpDevPlug)},
	{"hang", "dev hang", "Hang", []field{deviceArgument}, nameRequest(ctl.OpDevHang)},
	{"fault", "fault add", "Disturb packets", slices.Concat(
		[]field{{Name: "dev", Device: true, Needed: true, Help: "Device that sends the packets."}},
		fieldsOf(fault.Rule{})), faultRequest},
	{"verb", "fault add", "Make a verb fail", slices.Concat(
		[]field{{Name: "dev", Device: true, Help: "Device of the verb; default: all."}}, fieldsOf(fault.VerbRule{}),
		[]field{{Name: "delay", Placeholder: "D", Help: "Time for which the verb waits."}}), verbRequest},
	{"clear", "fault clear", "Remove a rule", []field{
		{Name: "id", Argument: true, Help: "Number of the rule; default: all rules."},
		{Name: "dev", Device: true, Help: "Only this device."}}, clearRequest},
	{"trace", "qp trace", "Trace a queue pair", []field{
		{Name: "qpn", Argument: true, Needed: true, Help: "Number of the queue pair."},
		{Name: "dev", Device: true, Help: "Device of the queue pair."},
		{Name: "off", Switch: true, Help: "End the trace."}}, traceRequest},
}

var deviceArgument = field{Name: "name", Argument: true, Device: true, Needed: true, Help: "Name of the device."}

func findAction(name string) *action {
	if i := slices.IndexFunc(actions, func(a action) bool { return a.Name == name }); i >= 0 {
		return &actions[i]
	}
	return nil
}

// flagName returns the name of the flag for a field of package fault, or "" if the field is no flag.
func flagName(f reflect.StructField) string {
	switch {
	case f.Tag.Get("kong") == "-" || f.Tag.Get("yaml") == "-" && f.Tag.Get("help") == "":
		return ""
	case f.Tag.Get("name") != "":
		return f.Tag.Get("name")
	case f.Tag.Get("yaml") == "-":
		return strings.ToLower(f.Name)
	}
	return f.Tag.Get("yaml")
}

// fieldsOf returns the fields for a struct of package fault, as on the command line.
func fieldsOf(v any) (list []field) {
	for f := range reflect.TypeOf(v).Fields() {
		name := flagName(f)
		if name == "" {
			continue
		}
		x := field{Name: name, Help: f.Tag.Get("help"), Placeholder: f.Tag.Get("placeholder"),
			Switch: f.Type.Kind() == reflect.Bool, Needed: name == "verb"}
		for _, k := range fault.FlagKinds() {
			if x.Help == "" && k.Name == name {
				x.Help, x.Placeholder = k.Usage(), k.Unit().Placeholder()
			}
		}
		list = append(list, x)
	}
	return list
}

// values holds the values of an action's fields, as users write them.
type values map[string]string

// setFields sets the fields of a struct of package fault. It returns an error for a value that is not of the field's
// type.
func (v values) setFields(to any) error {
	s := reflect.ValueOf(to).Elem()
	for f, x := range s.Fields() {
		text, ok := v[flagName(f)]
		if flagName(f) == "" || !ok {
			continue
		}
		if err := setValue(x, text); err != nil {
			return fmt.Errorf("%s: %w", flagName(f), err)
		}
	}
	return nil
}

func setValue(x reflect.Value, text string) (err error) {
	switch p := x.Addr().Interface().(type) {
	case *fault.Share:
		*p, err = fault.ParseShare(text)
	case *fault.Rate:
		*p, err = fault.ParseRate(text)
	case *fault.Size:
		*p, err = fault.ParseSize(text)
	case *time.Duration:
		*p, err = parseDuration(text)
	case *netip.Addr:
		if *p, err = netip.ParseAddr(text); err != nil {
			err = fmt.Errorf("%q is not an IP address", text)
		}
	case *bool:
		*p = text == "true"
	case *string:
		*p = text
	case *uint64:
		*p, err = parseNumber(text, 64)
	case *uint32:
		var n uint64
		n, err = parseNumber(text, 32)
		*p = uint32(n)
	default:
		err = fmt.Errorf("values of type %T have no text", p)
	}
	return err
}

func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a duration: write 50us or 2s", text)
	}
	return d, nil
}

func parseNumber(text string, bits int) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, bits)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number", text)
	}
	return n, nil
}

// maxValue limits the length of a value, in bytes.
const maxValue = 128

// parse returns the request for an action and the equivalent command. For an error about a value, the command is still
// returned. Empty values count as missing.
func (a *action) parse(args map[string]string) (r *ctl.Request, command string, err error) {
	v := values{}
	for name, text := range args {
		i := slices.IndexFunc(a.Fields, func(f field) bool { return f.Name == name })
		switch {
		case i < 0:
			return nil, "", errors.New("the action has no such field")
		case len(text) > maxValue || cleanText(text) != text || strings.HasPrefix(text, "-"):
			return nil, "", fmt.Errorf("%s: the value is too long, begins with a hyphen, or contains characters that are not printable",
				name)
		case text != "" && !(a.Fields[i].Switch && text == "false"):
			v[name] = text
		}
	}
	words := []string{"verbena", a.Command}
	for _, f := range a.Fields {
		if text, ok := v[f.Name]; ok && f.Argument {
			words = append(words, QuoteWord(text))
		}
	}
	for _, f := range a.Fields {
		switch text, ok := v[f.Name]; {
		case !ok || f.Argument:
		case f.Switch && text == "true":
			words = append(words, "--"+f.Name)
		default:
			words = append(words, "--"+f.Name+"="+QuoteWord(text))
		}
	}
	command = strings.Join(words, " ")
	for _, f := range a.Fields {
		if f.Needed && v[f.Name] == "" {
			return nil, command, fmt.Errorf("%s is missing", f.Name)
		}
	}
	r, err = a.request(v)
	return r, command, err
}

// QuoteWord quotes a word for a shell if necessary.
func QuoteWord(s string) string {
	plain := func(r rune) bool {
		return r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || strings.ContainsRune("%+,-./:=@_", r)
	}
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func linkRequest(v values) (*ctl.Request, error) {
	set := &ctl.LinkSet{Name: v["name"]}
	var err error
	if text, ok := v["state"]; ok {
		if set.State, set.Down, err = ctl.ParseLinkState(text); err != nil {
			return nil, err
		}
	}
	var shape fault.Shape
	if err := v.setFields(&shape); err != nil {
		return nil, err
	}
	ends := v["rate"] != "" || v["delay"] != "" || v["loss"] != "" // these remove the shape, even if it is zero
	if shape != (fault.Shape{}) || ends {
		if err := shape.Validate(); err != nil {
			return nil, err
		}
		set.Shape = &shape
	}
	if set.State == "" && set.Shape == nil {
		return nil, errors.New("nothing to change: give a state, a rate, a delay or a loss")
	}
	return &ctl.Request{Op: ctl.OpLinkSet, Set: set}, nil
}

func resetRequest(v values) (*ctl.Request, error) {
	reset := &ctl.DevReset{Name: v["name"], NoFlush: v["no-flush"] == "true"}
	if text, ok := v["unreachable"]; ok {
		d, err := parseDuration(text)
		if err == nil && d == 0 {
			err = errors.New("the duration must be longer than 0")
		}
		if err != nil {
			return nil, fmt.Errorf("unreachable: %w", err)
		}
		reset.Unreachable, reset.Outage = true, d
	}
	return &ctl.Request{Op: ctl.OpDevReset, Reset: reset}, nil
}

func nameRequest(op ctl.Op) func(values) (*ctl.Request, error) {
	return func(v values) (*ctl.Request, error) { return &ctl.Request{Op: op, Name: v["name"]}, nil }
}

func faultRequest(v values) (*ctl.Request, error) {
	r := &ctl.FaultRule{Dev: v["dev"]}
	if err := v.setFields(&r.Rule); err != nil {
		return nil, err
	}
	return &ctl.Request{Op: ctl.OpFaultAdd, Fault: r}, r.Rule.Validate()
}

func verbRequest(v values) (*ctl.Request, error) {
	var rule fault.VerbRule
	if err := v.setFields(&rule); err != nil {
		return nil, err
	}
	if text, ok := v["delay"]; ok {
		d, err := parseDuration(text)
		if err != nil {
			return nil, fmt.Errorf("delay: %w", err)
		}
		rule.Delay = d
	}
	rule = rule.WithDefaults()
	return &ctl.Request{Op: ctl.OpFaultAdd, Fault: &ctl.FaultRule{Dev: v["dev"], Verb: &rule}}, rule.Validate()
}

func clearRequest(v values) (*ctl.Request, error) {
	r := &ctl.Request{Op: ctl.OpFaultClear, Name: v["dev"]}
	if text, ok := v["id"]; ok {
		n, err := parseNumber(text, 31)
		if err != nil {
			return nil, err
		}
		r.ID = int(n)
	}
	return r, nil
}

func traceRequest(v values) (*ctl.Request, error) {
	n, err := parseNumber(v["qpn"], 32)
	if err != nil {
		return nil, err
	}
	return &ctl.Request{Op: ctl.OpQPTrace,
		Trace: &ctl.QPTrace{Dev: v["dev"], Num: uint32(n), End: v["off"] == "true"}}, nil
}

// meta returns the first message to a page: the actions and the version.
func (p *page) meta() []byte {
	b, err := json.Marshal(struct {
		Version  string   `json:"version"`
		Actions  []action `json:"actions"`
		Interval int64    `json:"interval_ms"`
		Scenario bool     `json:"scenario"`
	}{p.Version, actions, refreshInterval.Milliseconds(), p.Scenario != nil})
	if err != nil {
		panic(err) // the table has a field without JSON
	}
	return b
}
