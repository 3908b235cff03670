//go:build interop

package interop

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// nlAttr is an attribute as printed by netlink.py. It has a type, the nested flag, a length, and the value in
// hexadecimal digits or the nested attributes.
type nlAttr struct {
	kind   int
	nested bool
	length int
	value  string
	within []nlAttr
}

func (a *nlAttr) UnmarshalJSON(b []byte) error {
	var value json.RawMessage
	if err := json.Unmarshal(b, &[]any{&a.kind, &a.nested, &a.length, &value}); err != nil {
		return err
	}
	if a.nested {
		return json.Unmarshal(value, &a.within)
	}
	return json.Unmarshal(value, &a.value)
}

// nlAnswer is the answer to a request.
type nlAnswer struct {
	Error    string
	Messages []struct {
		Kind, Flags int
		Attrs       []nlAttr
	}
}

// The following map has the attributes that the comparison names (enum rdma_nldev_attr).
const (
	nlPID      = 28
	nlKernName = 29
)

// nlVaryingAttrs lists the attributes whose values depend on a device, a process or an object.
var nlVaryingAttrs = map[int]bool{
	1: true, 5: true, 6: true, 7: true, 8: true, 18: true, 21: true, 22: true, 23: true, 24: true, nlPID: true,
	33: true, 34: true, 42: true, 43: true, 44: true, 45: true, 50: true, 51: true, 60: true, 61: true, 62: true,
	63: true, 64: true, 72: true, 83: true,
}

// nlDifferences lists the expected differences with their reasons. "-" marks facts of only the kernel's answers,
// and "+" marks facts of only Verbena's answers. The kernel is Linux 6.1.
var nlDifferences = []struct{ pattern, why string }{
	{`^- chardev umad[:/]|^\+ chardev umad: ENOTSUP$`, "there is no umad"},
	{`^\+ get( one)?/101 = 01$`, "NAME_ASSIGN_TYPE is younger than the kernel"},
	{`^[-+] get( one)?/4 = `, "the kernel's rxe claims path migration; FLUSH and atomic WRITE are younger than it"},
	{`^\+ get( one)?/5: `, "Verbena reports its version"},
	{`^\+ sys_get/103 = 00$`, "MONITOR_MODE is younger than the kernel"},
	{`^\+ stat [a-z]*/80/81/82 = "(drop_|ecn_|send_|recv_|sent_)`, "counters of Verbena"},
	{`^[-+] rough: an empty datagram `, "programs send through a kernel socket, which accepts an empty datagram"},
	{`^[-+] rough: a family without operations `, "Verbena has no ib_sa; kernels without it exist, too"},
}

// reportFacts reports the reportFacts of an answer's attributes. For objects, reportFacts reports only the objects of
// programs, because the kernel has some objects of its own. An attribute marked as nested has flag 1.
func (a *nlAnswer) reportFacts(what string, add func(string)) {
	if a.Error != "" {
		add(what + ": " + a.Error)
	}
	for _, m := range a.Messages {
		if isKernelObject(m.Attrs) {
			continue
		}
		add(fmt.Sprintf("%s: message %#x, flags %#x", what, m.Kind, m.Flags))
		reportAttrFacts(what, m.Attrs, add)
	}
}

// isKernelObject reports whether an object belongs to the kernel.
func isKernelObject(list []nlAttr) bool {
	return slices.ContainsFunc(list, func(x nlAttr) bool { return x.kind == nlKernName })
}

func reportAttrFacts(path string, list []nlAttr, add func(string)) {
	for _, a := range list {
		p := fmt.Sprintf("%s/%d", path, a.kind)
		switch {
		case a.nested && isKernelObject(a.within):
		case a.nested:
			add(fmt.Sprintf("%s {} flag %d", p, a.length))
			reportAttrFacts(p, a.within, add)
		case nlVaryingAttrs[a.kind] || strings.HasPrefix(path, "res_") && a.length == 4:
			add(fmt.Sprintf("%s: %d bytes", p, a.length))
		default:
			v := a.value
			if b, err := hex.DecodeString(v); err == nil && len(b) > 1 && b[len(b)-1] == 0 && b[0] >= ' ' && b[0] < 0x7f &&
				a.length != 4 && a.length != 8 {
				v = fmt.Sprintf("%q", b[:len(b)-1])
			}
			add(fmt.Sprintf("%s = %s", p, v))
		}
	}
}

// testNetlink compares the NETLINK_RDMA answers of the two devices attribute by attribute, while programs have
// objects on the devices. testNetlink also compares the reactions of the sockets to invalid requests.
func testNetlink(t *testing.T) {
	script, err := filepath.Abs("netlink.py")
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]map[string]bool{}
	for _, p := range []*peer{kernelPeer, verbenaPeer} {
		facts := map[string]bool{}
		said[p.name] = facts
		var stops []func(time.Duration) (int, string, error)
		for _, line := range []string{"rping -s -P -a ADDR", "rping -c -a ADDR -C 1000000"} {
			stop, err := p.startProgram(strings.Fields(strings.ReplaceAll(line, "ADDR", p.ip["IPv4"])))
			if err != nil {
				t.Fatal(err)
			}
			stops = append(stops, stop)
			time.Sleep(2 * time.Second)
		}
		out, err := p.runShell("python3 " + script + " rxe0")
		if p == verbenaPeer {
			held, _ := theLab.runCommand(theLab.verbena, "res", "show")
			defer func() {
				if t.Failed() {
					t.Logf("programs on Verbena hold\n%s", held)
				}
			}()
		}
		for _, stop := range stops {
			stop(time.Millisecond)
		}
		if err != nil {
			t.Fatalf("netlink.py on %s: got %v, want success:\n%s", p.name, err, out)
		}
		var all map[string]json.RawMessage
		if err := json.Unmarshal([]byte(out), &all); err != nil {
			t.Fatalf("JSON of netlink.py on %s: got %v, want success:\n%s", p.name, err, out)
		}
		for what, raw := range all {
			add := func(s string) { facts[s] = true }
			var one nlAnswer
			var many []nlAnswer
			var lines []string
			switch {
			case json.Unmarshal(raw, &one) == nil:
				one.reportFacts(what, add)
			case json.Unmarshal(raw, &many) == nil:
				if len(many) == 0 {
					add(what + ": none")
				}
				for _, a := range many {
					a.reportFacts(what, add)
				}
			default:
				if err := json.Unmarshal(raw, &lines); err != nil {
					t.Fatalf("JSON of an answer on %s: %s: got %v, want success", p.name, raw, err)
				}
				for _, l := range lines {
					add("rough: " + l)
				}
			}
		}
	}
	k, v := said["kernel"], said["Verbena"]
	t.Logf("%d facts from the kernel, %d from Verbena", len(k), len(v))
	var diff []string
	for f := range k {
		if !v[f] {
			diff = append(diff, "- "+f)
		}
	}
	for f := range v {
		if !k[f] {
			diff = append(diff, "+ "+f)
		}
	}
	slices.SortFunc(diff, func(a, b string) int { return strings.Compare(a[2:]+a, b[2:]+b) })
	explained := make([]int, len(nlDifferences))
	for _, d := range diff {
		i := slices.IndexFunc(nlDifferences,
			func(x struct{ pattern, why string }) bool { return regexp.MustCompile(x.pattern).MatchString(d) })
		if i < 0 {
			t.Errorf("difference without a reason: got %s, want none", d)
			continue
		}
		explained[i]++
	}
	for i, x := range nlDifferences {
		t.Logf("%d differences: %s", explained[i], x.why)
		if explained[i] == 0 {
			t.Errorf("difference %s: got none, want one, or remove its entry", x.pattern)
		}
	}
}
