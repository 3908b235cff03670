package fault

import (
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"verbena/internal/gendoc"
)

// setNonzero gives a field a value other than zero.
func setNonzero(v reflect.Value) {
	switch {
	case v.CanFloat():
		v.SetFloat(0.5)
	case v.CanInt():
		v.SetInt(7)
	case v.CanUint():
		v.SetUint(7)
	default:
		v.SetBool(true)
	}
}

// TestKinds tests that each field of Rule except the selections is a kind, in this order, and that all columns of
// its row refer to the field.
func TestKinds(t *testing.T) {
	i := 0
	for f := range reflect.TypeFor[Rule]().Fields() {
		name := f.Tag.Get("yaml")
		if f.Tag.Get("help") != "" || name == "-" {
			continue
		}
		if i == len(kinds) || kinds[i].Name != name {
			t.Fatalf("row %[2]d of Kinds: got another kind, want field %[1]s", f.Name, i)
		}
		k := &kinds[i]
		i++
		if json, _, _ := strings.Cut(f.Tag.Get("json"), ","); json != name && json != name+"_ns" {
			t.Errorf("%s: JSON name: got %s, want the name of the kind", name, json)
		}
		if f.Tag.Get("complete") != "none" && k.Unit() != unitSwitch {
			t.Errorf("%s: got no tag for completions, want one", name)
		}
		if !strings.HasSuffix(k.Help, ".") || k.Counter != strings.ToUpper(k.Counter) || k.Counter == "" {
			t.Errorf("%s: got help %q and counter %q, want a sentence and capital letters", name, k.Help, k.Counter)
		}
		var r Rule
		setNonzero(reflect.ValueOf(&r).Elem().FieldByIndex(f.Index))
		for j := range kinds {
			if kinds[j].isInRule(&r) != (&kinds[j] == k) {
				t.Errorf("%s: rule with this kind only: got %[3]v for kind %[2]s", name, kinds[j].Name, kinds[j].isInRule(&r))
			}
		}
		var back Rule
		if b, err := json.Marshal(r); err != nil || json.Unmarshal(b, &back) != nil || back != r {
			t.Errorf("%s: got rule %+v from %s and error %v, want %+v", name, back, b, err, r)
		}
		if err := r.Validate(); err != nil || !r.HasEffect() || !strings.HasPrefix(r.String(), name) {
			t.Errorf("%s: got rule %q, active %v and error %v, want an active rule", name, r, r.HasEffect(), err)
		}
	}
	if i != len(kinds) {
		t.Errorf("rows of Kinds without fields: got %v, want none", kindNames(kinds[i:], func(*Kind) bool { return true }))
	}
	if (&Rule{Seed: 1, Skip: 1, Limit: 1, QP: 1}).HasEffect() {
		t.Error("Active: got true for a rule without an effect, want false")
	}
}

// TestMatches tests that each property of Rule by which it selects packets has a row with the names of its field.
func TestMatches(t *testing.T) {
	i := 0
	for f := range reflect.TypeFor[Rule]().Fields() {
		name := f.Tag.Get("yaml")
		if f.Tag.Get("help") == "" || name == "skip" || name == "limit" || name == "seed" {
			continue
		}
		if i == len(matches) || matches[i].Name != name {
			t.Fatalf("row %d of matches: got another property, want %s", i, name)
		}
		m := &matches[i]
		i++
		if json, _, _ := strings.Cut(f.Tag.Get("json"), ","); json != strings.ReplaceAll(name, "-", "_") {
			t.Errorf("%s: JSON name: got %s, want the name of the property", name, json)
		}
		if f.Tag.Get("complete") == "" || f.Tag.Get("placeholder") == "" {
			t.Errorf("%s: got no tags for completions and the placeholder, want both", name)
		}
		var r Rule
		for j := range matches {
			if matches[j].value(&r) != nil {
				t.Errorf("%s: empty rule: got a value, want none", matches[j].Name)
			}
		}
		field := reflect.ValueOf(&r).Elem().FieldByIndex(f.Index)
		switch v := field.Addr().Interface().(type) {
		case encoding.TextUnmarshaler:
			text := map[string]string{"peer": "10.0.0.1", "gid": "10.0.0.1", "qp-type": "ud", "tclass": "4"}[name]
			if err := v.UnmarshalText([]byte(cmp.Or(text, "1"))); err != nil {
				t.Fatal(err)
			}
		default:
			setNonzero(field)
		}
		for j := range matches {
			if (matches[j].value(&r) != nil) != (&matches[j] == m) {
				t.Errorf("%s: rule with this property only: got another property, want none", name)
			}
		}
		if s := r.Selector(); len(s.selects) != 1 || s.Selects(&Packet{}) {
			t.Errorf("%s: got %d functions, or a selected packet, want one function and none", name, len(s.selects))
		}
		r.Drop = 1
		var back Rule
		if b, err := json.Marshal(r); err != nil || json.Unmarshal(b, &back) != nil || back != r {
			t.Errorf("%s: got rule %+v from %s and error %v, want %+v", name, back, b, err, r)
		}
		if !strings.HasPrefix(r.String(), "drop 1 ") {
			t.Errorf("%s: got text %q, want the property", name, r)
		}
	}
	if i != len(matches) || len(MatchNames()) != i {
		t.Errorf("rows of matches: got %d, want %d", len(matches), i)
	}
}

// TestParseProperties tests valid and invalid texts of properties.
func TestParseProperties(t *testing.T) {
	for _, c := range []struct {
		v     encoding.TextUnmarshaler
		text  string
		again string // as formatted; "" if the text is invalid
	}{
		{new(ServiceLevel), "0", "0"}, {new(ServiceLevel), "15", "15"}, {new(ServiceLevel), "0xf", "15"},
		{new(ServiceLevel), "16", ""}, {new(ServiceLevel), "-1", ""}, {new(ServiceLevel), "", ""},
		{new(TrafficClass), "255", "255"}, {new(TrafficClass), "256", ""}, {new(TrafficClass), "af21", ""},
		{new(PKey), "0xffff", "0xffff"}, {new(PKey), "32767", "0x7fff"}, {new(PKey), "0x10000", ""},
		{new(PKey), "4294967295", ""}, {new(PKey), "18446744073709551616", ""},
		{new(QPType), "RC", "rc"}, {new(QPType), "xrc", "xrc"}, {new(QPType), "", ""}, {new(QPType), "any", ""},
		{new(QPType), strings.Repeat("x", 1<<20), ""},
	} {
		err := c.v.UnmarshalText([]byte(c.text))
		if (err == nil) != (c.again != "") || err != nil && len(err.Error()) > 200 {
			t.Errorf("%T of %.20q: got %.300v", c.v, c.text, err)
		}
		if b, _ := c.v.(encoding.TextMarshaler).MarshalText(); string(b) != c.again {
			t.Errorf("%T of %.20q: got %q, want %q", c.v, c.text, b, c.again)
		}
	}
}

// TestColumns tests that each counter has exactly one column.
func TestColumns(t *testing.T) {
	columns := CounterKinds()
	shown := 0
	for f := range reflect.TypeFor[RuleCounts]().Fields() {
		if f.Type.Kind() != reflect.Uint64 || f.Name == "Seen" || f.Name == "Hit" {
			continue
		}
		var c RuleCounts
		setNonzero(reflect.ValueOf(&c).Elem().FieldByIndex(f.Index))
		n := 0
		for i := range columns {
			if columns[i].CounterValue(&c) == 7 {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s: got %d columns, want 1", f.Name, n)
		}
		shown++
		for i := range kinds {
			k := &kinds[i]
			for j := range columns {
				if columns[j].Counter == k.Counter && columns[j].CounterValue(&c) != k.CounterValue(&c) {
					t.Errorf("kinds %s and %s: got one counter name for two counters, want two names", k.Name, columns[j].Name)
				}
			}
		}
	}
	if shown != len(columns) {
		t.Errorf("columns: got %d counters in %d columns, want one each", shown, len(columns))
	}
}

// TestParseShareRounds tests that ParseShare converts a percentage to the nearest number.
func TestParseShareRounds(t *testing.T) {
	for text, want := range map[string]Share{"0": 0, "1": 1, "0.57": 0.57, ".5": 0.5, "0%": 0, "57%": 0.57, "0.3%": 0.003,
		"100%": 1, " 1% ": 0.01} {
		if got, err := ParseShare(text); err != nil || got != want {
			t.Errorf("ParseShare(%q): got %v, %v, want %v", text, got, err, want)
		}
		if got, err := ParseShare(fmt.Sprint(want)); err != nil || got != want {
			t.Errorf("ParseShare of the text of %v: got %v and error %v, want the same", want, got, err)
		}
	}
	for _, text := range []string{"", "%", "1%%", "1 %", "some", "1.1", "101%", "-1%", "NaN", "Inf"} {
		if got, err := ParseShare(text); err == nil {
			t.Errorf("ParseShare(%q): got %v, want an error", text, got)
		}
	}
}

// TestPagesListFaultKinds tests that the documentation pages list the kinds.
func TestPagesListFaultKinds(t *testing.T) {
	var table, list strings.Builder
	table.WriteString("| what | | counted as |\n|---|---|---|\n")
	for i, k := range FlagKinds() {
		flag := strings.TrimSpace("--" + k.Name + " " + k.Unit().Placeholder())
		fmt.Fprintf(&table, "| `%s` | %s | %s |\n", flag, k.Usage(), k.Counter)
		if i > 0 {
			list.WriteString(", ")
		}
		fmt.Fprintf(&list, "`%s`", k.Name)
	}
	gendoc.CheckSection(t, "../../docs/network.md", "faults", table.String())
	gendoc.CheckSection(t, "../../docs/failover.md", "faults", "Kinds of `fault`: "+list.String()+".")
}
