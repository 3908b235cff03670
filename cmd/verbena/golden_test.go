package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/alecthomas/kong"

	"verbena/internal/ctl"
)

var updateGolden = flag.Bool("update", false, "write the golden files anew")

// compareGolden compares a text with a file of testdata.
func compareGolden(t *testing.T, name, got string) {
	t.Helper()
	file := "testdata/" + name
	if *updateGolden {
		if os.Getenv("CI") == "true" {
			t.Fatalf("-update with CI=true would hide that %s is out of date", file)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s\n(go test ./cmd/verbena -run %s -update rewrites it)", file, got, want, t.Name())
	}
}

// TestFaultHelpMatchesGolden compares the help, manual pages and completions of the commands that disturb links or
// print their state with golden files.
func TestFaultHelpMatchesGolden(t *testing.T) {
	t.Setenv("COLUMNS", "") // the help is wrapped at this width
	var b strings.Builder
	for _, command := range []string{"fault add", "fault show", "fault clear", "link set", "link show", "qp show",
		"qp trace"} {
		var c cli
		parser := newParser(&c)
		parser.Stdout = &b
		k, err := kong.Trace(parser, strings.Fields(command))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "# verbena %s --help\n", command)
		if err := k.PrintUsage(false); err != nil {
			t.Fatal(err)
		}
	}
	for _, page := range []string{"verbena-fault.1", "verbena-link.1"} {
		fmt.Fprintf(&b, "# %s\n%s", page, manualPages(commandModel(), "2026-01-01", "verbena 0")[page])
	}
	for _, command := range []string{"fault add", "link set"} {
		fmt.Fprintf(&b, "# completions of verbena %s --\n", command)
		printCompletions(&b, commandModel().Node, append(strings.Fields(command), "--"), nil)
	}
	compareGolden(t, "fault_help.txt", b.String())
}

// faultCommandLines holds valid and invalid command lines.
var faultCommandLines = []string{
	"fault add --dev rxe0 --drop 1%",
	"fault add --dev rxe0 --qp 17 --peer ::ffff:10.0.0.2 --skip 1 --limit 2 --seed 3 --drop 0.25 --duplicate 1 --corrupt .5 --reorder 100% --delay 50us --jitter 1ms",
	"fault add --dev rxe0 --rnr 10%",
	"fault add --dev rxe0 --gid ::ffff:10.0.0.1 --qp-type UD --sl 0 --tclass 106 --pkey 0xffff --drop 1",
	"fault add --dev rxe0 --gid fe80::1%eth0 --drop 1",
	"fault add --dev rxe0 --gid 7 --drop 1",
	"fault add --dev rxe0 --qp-type any --drop 1",
	"fault add --dev rxe0 --sl 16 --drop 1",
	"fault add --dev rxe0 --sl 3 --stop",
	"fault add --dev rxe0 --sl 3 --rnr 1",
	"fault add --dev rxe0 --tclass 256 --drop 1",
	"fault add --dev rxe0 --pkey 0x10000 --drop 1",
	"fault add --dev rxe0 --stop --peer fe80::1%eth0",
	"fault add --verb create_cq --errno ENOMEM --nth 2",
	"fault add --verb reg_mr --delay 100ms --dev rxe0 --process server --times 3",
	"fault add --dev rxe0",
	"fault add --dev rxe0 --qp 17 --skip 1 --limit 2 --seed 3 --peer 10.0.0.2",
	"fault add --drop 1%",
	"fault add --dev rxe0 --drop 101%",
	"fault add --dev rxe0 --drop -1%",
	"fault add --dev rxe0 --drop some",
	"fault add --dev rxe0 --drop",
	"fault add --dev rxe0 --drop NaN",
	"fault add --dev rxe0 --delay 5",
	"fault add --dev rxe0 --delay -5s",
	"fault add --dev rxe0 --delay 61s",
	"fault add --dev rxe0 --jitter 61s",
	"fault add --dev rxe0 --peer 10.0.0",
	"fault add --dev rxe0 --qp -1 --drop 1",
	"fault add --dev rxe0 --qp 16777216 --drop 1",
	"fault add --dev rxe0 --stop --rnr 1",
	"fault add --dev rxe0 --stop --delay 1s",
	"fault add --dev rxe0 --rnr 1 --drop 1",
	"fault add --dev rxe0 --drop 1 --nth 1",
	"fault add --dev rxe0 --behind 1 --reorder 1",
	"fault add --dev rxe0 --hold 1s --reorder 1",
	"fault add --verb create_cq --errno ENOMEM --drop 1",
	"fault add --verb create_cq --errno ENOMEM --skip 1",
	"fault add --verb create_cq --errno ENOMEM --stop",
	"fault add --verb create_cq",
	"link set rxe0 flap=2s --at-wr 5",
	"link set rxe0 --rate 1.5Gbit --delay 20us --jitter 1us --queue 256KB --ecn-threshold 64K --loss 1% --seed 7",
	"link set rxe0 --rate 64kbit --queue 9packets --mtu 1024",
	"link set rxe0 --rate none",
	"link set rxe0 --delay 0",
	"link set rxe0 --loss 0",
	"link set rxe0 --jitter 0",
	"link set rxe0",
	"link set rxe0 --seed 7",
	"link set rxe0 --rate 5",
	"link set rxe0 --rate 5bit",
	"link set rxe0 --rate 2Tbit",
	"link set rxe0 --delay 61s",
	"link set rxe0 --delay -1s",
	"link set rxe0 --delay soon",
	"link set rxe0 --jitter 61s",
	"link set rxe0 --queue 1KB",
	"link set rxe0 --queue 0",
	"link set rxe0 --queue 0p",
	"link set rxe0 --rate 1Gbit --queue 65MB",
	"link set rxe0 --rate 1Gbit --queue 65537p",
	"link set rxe0 --rate 1Gbit --ecn-threshold 65MB",
	"link set rxe0 --ecn-threshold 0",
	"link set rxe0 --ecn-threshold 1KB",
	"link set rxe0 --loss 101%",
	"link set rxe0 --loss some",
}

// TestFaultRequestsMatchGolden compares the requests, or errors, of command lines with a golden file.
func TestFaultRequestsMatchGolden(t *testing.T) {
	var b strings.Builder
	for _, line := range faultCommandLines {
		fmt.Fprintf(&b, "$ verbena %s\n", line)
		var c cli
		k, err := newParser(&c).Parse(strings.Fields(line))
		if err != nil {
			fmt.Fprintln(&b, usageError(err))
			continue
		}
		var request any
		if k.Command() == "fault add" {
			request, err = c.Fault.Add.buildRule()
		} else {
			request, err = c.Link.Set.buildRequest()
		}
		if err != nil {
			fmt.Fprintln(&b, err)
			continue
		}
		js, err := json.Marshal(request)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s\n", js)
	}
	compareGolden(t, "fault_requests.txt", b.String())
}

// sampleResponse is a response of a service in which each field has a value.
const sampleResponse = `{
	"Links": [{"name":"rxe0","uverbs":"uverbs0","netdev":"lo","state":"ACTIVE","mtu":1024,"gids":null,"wire":false,"link":"flap","max_mtu":512,
		"shape":{"rate_bps":1500000000,"delay_ns":20000,"jitter_ns":1000,"queue_bytes":262144,"queue_packets":9,"ecn_bytes":65536,"loss":0.01,"seed":7}}],
	"Faults": [
		{"dev":"rxe0","id":1,"peer":"10.0.0.2","qp":17,"skip":1,"limit":2,"seed":3,"drop":0.25,"duplicate":1,"corrupt":0.5,"delay_ns":50000,
			"jitter_ns":1000000,"reorder":1,"behind":2,"hold_ns":1000000000,"seen":10,"hit":9,"dropped":8,"duplicated":7,"corrupted":6,"delayed":5,
			"reordered":4,"not_ready":3,"hit_at":[1,2,3]},
		{"dev":"rxe0","id":2,"stop":true,"seen":0,"hit":0,"dropped":0,"duplicated":0,"corrupted":0,"delayed":0,"reordered":0,"not_ready":0},
		{"dev":"rxe1","id":3,"rnr":0.1,"seen":0,"hit":0,"dropped":0,"duplicated":0,"corrupted":0,"delayed":0,"reordered":0,"not_ready":5},
		{"dev":"","id":4,"verb_fault":{"verb":"create_cq","errno":"ENOMEM","nth":2,"times":1},"seen":4,"hit":1,"dropped":0,"duplicated":0,
			"corrupted":0,"delayed":0,"reordered":0,"not_ready":0,"hit_at":[2]}],
	"QPs": [
		{"device":"rxe0","num":17,"type":"RC","state":"RTS","dest_qpn":18,"peer":"10.0.0.2","mtu":1024,"traced":true,"slow":true,"unacknowledged":1,
			"next_psn":2,"expected_psn":3,"in_flight":4,"window":5,"retries":6,"rnr_retries":7,"egress":8,"retransmits":9},
		{"device":"rxe0","num":18,"type":"UD","state":"RTS","mtu":1024,"traced":true,"unacknowledged":0,"next_psn":0,"expected_psn":0,
			"in_flight":0,"window":0,"retries":0,"rnr_retries":0,"egress":0,"retransmits":0}],
	"Trace": {"device":"rxe0","num":17,"began":false,"on":true,"lost":2,"events":[
		{"time":"2026-01-02T03:04:05.123456Z","event":"receive","opcode":"RC Acknowledge","psn":7340,"detail":"ACK"},
		{"time":"2026-01-02T03:04:05.123457Z","event":"timeout"}]}
}`

// TestFaultOutputMatchesGolden compares the text and JSON output of commands for answer with golden files.
func TestFaultOutputMatchesGolden(t *testing.T) {
	var r ctl.Response
	d := json.NewDecoder(strings.NewReader(sampleResponse))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, v := range []any{r.Links, r.Faults, r.QPs, r.Trace} {
		js, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s\n", js)
	}
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	writeFaultTable(w, r.Faults)
	w.Flush()
	writeQPTable(w, r.QPs)
	w.Flush()
	writeTraceTable(w, r.Trace.Events)
	w.Flush()
	fmt.Fprintln(&b, describeLinkState(&r.Links[0]))
	compareGolden(t, "fault_answers.txt", b.String())
}
