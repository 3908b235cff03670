package scenario

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestFaultRequests checks the requests that an action sends to the service, or the error of its file.
func TestFaultRequests(t *testing.T) {
	for _, c := range []struct{ action, want string }{
		{"fault: {dev: rxe0, drop: 1%}", `{"dev":"rxe0","drop":0.01}`},
		{"fault: {dev: rxe0, peer: 10.0.0.2, qp: 17, skip: 1, limit: 2, seed: 3, drop: 0.25, duplicate: 100%, corrupt: .5, reorder: ' 1 ', delay: 50us, jitter: 1ms}",
			`{"dev":"rxe0","peer":"10.0.0.2","qp":17,"skip":1,"limit":2,"seed":3,"drop":0.25,"duplicate":1,"corrupt":0.5,"delay_ns":50000,"jitter_ns":1000000,"reorder":1}`},
		{"fault: {dev: rxe0, gid: 10.0.0.1, qp-type: ud, sl: 3, tclass: 106, pkey: 0x7fff, drop: 1}",
			`{"dev":"rxe0","gid":"10.0.0.1","qp_type":"ud","sl":"3","tclass":"106","pkey":"0x7fff","drop":1}`},
		{"fault: {dev: rxe0, sl: 16, drop: 1}", `error: "16" is not a service level: use a number from 0 to 15`},
		{"fault: {dev: rxe0, qp-type: rd, drop: 1}", `error: "rd" is not a type of queue pairs: use rc, uc, ud, xrc or srd`},
		{"fault: {dev: rxe0, tclass: -1, drop: 1}", `error: "-1" is not a traffic class: use a number from 0 to 255`},
		{"fault: {dev: rxe0, rnr: 10%}", `{"dev":"rxe0","rnr":0.1}`},
		{"fault: {dev: rxe0, stop: true}", `{"dev":"rxe0","stop":true}`},
		{"fault: {dev: rxe0}", `{"dev":"rxe0"}`},
		{"fault: {dev: rxe0, drop: 0, delay: 0s}", `{"dev":"rxe0"}`},
		{"fault: {dev: rxe0, drop: 101%}", `error: "101%" is not a share between 0 and 100%`},
		{"fault: {dev: rxe0, rnr: -0.1}", `error: "-0.1" is not a share between 0 and 100%`},
		{"fault: {dev: rxe0, drop: some}", `error: "some" is not a share: write 1% or 0.01`},
		{"fault: {dev: rxe0, drop: }", `{"dev":"rxe0"}`},
		{"fault: {dev: rxe0, delay: 5}", `error: "5" is not a duration: write 5s, 300ms or 20us`},
		{"fault: {dev: rxe0, delay: -5s}", `error: "-5s" is not a duration: write 5s, 300ms or 20us`},
		{"fault: {dev: rxe0, jitter: 1 minute}", `error: "1 minute" is not a duration: write 5s, 300ms or 20us`},
		{"fault: {dev: rxe0, peer: 10.0.0}", `error: ParseAddr("10.0.0"): IPv4 address too short`},
		{"fault: {dev: rxe0, behind: 1}", `unknown field "behind"`},
		{"fault: {dev: rxe0, hold: 1s}", `unknown field "hold"`},
		{"fault: {dev: rxe0, delay_ns: 1}", `unknown field "delay_ns"`},
		{"fault: {dev: rxe0, drop: 1%, drop: 2%}", `mapping key "drop" already defined`},
		{"fault: {dev: rxe0, qp: many}", `cannot unmarshal string into Go struct field`},
		{"fault: {dev: rxe0, stop: 1}", `cannot unmarshal uint64 into Go struct field`},
		{"fault: {drop: 1%}", `error: action "fault": unknown device ""`},
		{"link: {dev: rxe0, shape: {rate: 1.5Gbit, delay: 20us, jitter: 1us, queue: 256KB, packets: 9, ecn: 64KB, loss: 1%}}",
			`{"name":"rxe0","shape":{"rate_bps":1500000000,"delay_ns":20000,"jitter_ns":1000,"queue_bytes":262144,"queue_packets":9,"ecn_bytes":65536,"loss":0.01,"seed":1}}`},
		{"link: {dev: rxe0, shape: {rate: 64kbit, queue: 1.5KB}}",
			`{"name":"rxe0","shape":{"rate_bps":64000,"queue_bytes":1536}}`},
		{"link: {dev: rxe0, shape: {rate: 5}}", `error: "5" is not a rate: write 100Mbit, 10Gbit or none`},
		{"link: {dev: rxe0, shape: {rate: none}}", `{"name":"rxe0","shape":{}}`},
		{"link: {dev: rxe0, shape: {rate: 1Kbit, queue: 64K}}",
			`{"name":"rxe0","shape":{"rate_bps":1000,"queue_bytes":65536}}`},
		{"link: {dev: rxe0, shape: {ecn: 9p}}", `error: "9p" is not a number of bytes: write 65536, 64K or 64KB`},
		{"link: {dev: rxe0, shape: {loss: 2}}", `error: "2" is not a share between 0 and 100%`},
		{"link: {dev: rxe0, shape: {seed: 2}}", `unknown field "seed"`},
		{"link: {dev: rxe0, shape: {queue_bytes: 2}}", `unknown field "queue_bytes"`},
		{"link: {dev: rxe0, shape: {}}", `{"name":"rxe0","shape":{}}`},
	} {
		f, err := parseFile([]byte(baseText+"actions: [{"+c.action+"}]"), nil)
		if err != nil {
			if got := "error: " + err.Error(); got != c.want &&
				(strings.HasPrefix(c.want, "error: ") || !strings.Contains(got, c.want)) {
				t.Errorf("%s: got\n%s, want\n%s", c.action, got, c.want)
			}
			continue
		}
		x := &runState{f: f}
		requests, err := x.actionRequests(&f.Actions[0])
		if err != nil || len(requests) != 1 {
			t.Errorf("%s: got %d requests and error %v, want 1", c.action, len(requests), err)
			continue
		}
		var v any = requests[0].Fault
		if requests[0].Set != nil {
			v = requests[0].Set
		}
		if got, err := json.Marshal(v); err != nil || string(got) != c.want {
			t.Errorf("%s: got\n%s and error %v, want\n%s", c.action, got, err, c.want)
		}
	}
}
