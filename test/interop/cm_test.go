//go:build interop

package interop

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"
)

// cmTool is a program of librdmacm with a server and a client. ADDR is the server's address.
type cmTool struct {
	what           string
	service        string
	server, client string
	ips            []string
	ends           bool // the server ends together with its client
	refused        bool // the server must refuse the client
}

var cmTools = []cmTool{
	{"rping", "RC", "rping -s -a ADDR -C 5", "rping -c -a ADDR -C 5 -V", ipNames, true, false},
	{"ucmatose", "RC", "ucmatose -b ADDR", "ucmatose -s ADDR", ipNames, true, false},
	{"udaddy", "UD", "udaddy -b ADDR", "udaddy -s ADDR", ipNames, true, false},
	{"rdma_client", "RC", "rdma_server", "rdma_client -s ADDR", ipNames[:1], true, false},
	{"rdma_xclient -c r", "RC", "rdma_xserver -c r", "rdma_xclient -c r -s ADDR", ipNames[:1], true, false},
	{"riostream", "RC", "riostream -S 4096 -I 20 -C 2", "riostream -s ADDR -S 4096 -I 20 -C 2", ipNames[:1], true, false},
	{"cmtime -c 100", "RC", "cmtime", "cmtime -s ADDR -c 100", ipNames[:1], false, false},
	{"rping at a port without a listener", "RC", "", "rping -c -a ADDR -p 9999 -C 1", ipNames[:1], false, true},
}

// cmtalkOutputs holds the output of the two sides of cmtalk for each transport. The output does not depend on which
// side is the kernel.
var cmtalkOutputs = map[string]struct{ space, active, passive string }{
	"RC": {"tcp", `
R RDMA_CM_EVENT_REJECTED status 28 data 0+148
d RDMA_CM_EVENT_REJECTED status 28 data 0+148
e RDMA_CM_EVENT_ESTABLISHED status 0 data 0+196 depths 1 2
e RDMA_CM_EVENT_DISCONNECTED status 0 data 0+0
f RDMA_CM_EVENT_ESTABLISHED status 0 data 196+0 depths 1 2
f RDMA_CM_EVENT_DISCONNECTED status 0 data 0+0
n RDMA_CM_EVENT_REJECTED status 8 data 0+148
r RDMA_CM_EVENT_REJECTED status 28 data 148+0
s RDMA_CM_EVENT_ESTABLISHED status 0 data 0+196 depths 1 2
s RDMA_CM_EVENT_DISCONNECTED status 0 data 0+0
x RDMA_CM_EVENT_ESTABLISHED status 0 data 0+196 depths 1 2
y RDMA_CM_EVENT_ESTABLISHED status 0 data 0+196 depths 1 2
y RDMA_CM_EVENT_DISCONNECTED status 0 data 0+0
`, `
R RDMA_CM_EVENT_CONNECT_REQUEST status 0 data 1+55 depths 2 3
d RDMA_CM_EVENT_CONNECT_REQUEST status 0 data 1+55 depths 2 3
e RDMA_CM_EVENT_CONNECT_REQUEST status 0 data 0+56 depths 2 3
e RDMA_CM_EVENT_ESTABLISHED status 0 data 0+0 depths 0 0
e RDMA_CM_EVENT_DISCONNECTED status 0 data 0+0
f RDMA_CM_EVENT_CONNECT_REQUEST status 0 data 56+0 depths 2 3
f RDMA_CM_EVENT_ESTABLISHED status 0 data 0+0 depths 0 0
f RDMA_CM_EVENT_DISCONNECTED status 0 data 0+0
r RDMA_CM_EVENT_CONNECT_REQUEST status 0 data 1+55 depths 2 3
s RDMA_CM_EVENT_CONNECT_REQUEST status 0 data 1+55 depths 2 3
s RDMA_CM_EVENT_ESTABLISHED status 0 data 0+0 depths 0 0
s RDMA_CM_EVENT_DISCONNECTED status 0 data 0+0
x RDMA_CM_EVENT_CONNECT_REQUEST status 0 data 1+55 depths 2 3
x RDMA_CM_EVENT_ESTABLISHED status 0 data 0+0 depths 0 0
x RDMA_CM_EVENT_DISCONNECTED status 0 data 0+0
y RDMA_CM_EVENT_CONNECT_REQUEST status 0 data 1+55 depths 2 3
y RDMA_CM_EVENT_ESTABLISHED status 0 data 0+0 depths 0 0
`},
	"UD": {"udp", `
R RDMA_CM_EVENT_UNREACHABLE status 2 data 0+136
d RDMA_CM_EVENT_UNREACHABLE status 2 data 0+136
e RDMA_CM_EVENT_ESTABLISHED status 0 data 0+136 Q_Key 0x1234567
f RDMA_CM_EVENT_ESTABLISHED status 0 data 136+0 Q_Key 0x1234567
n RDMA_CM_EVENT_UNREACHABLE status 1 data 0+136
r RDMA_CM_EVENT_UNREACHABLE status 2 data 136+0
`, `
R RDMA_CM_EVENT_CONNECT_REQUEST status 0 data 1+179
d RDMA_CM_EVENT_CONNECT_REQUEST status 0 data 1+179
e RDMA_CM_EVENT_CONNECT_REQUEST status 0 data 0+180
f RDMA_CM_EVENT_CONNECT_REQUEST status 0 data 180+0
r RDMA_CM_EVENT_CONNECT_REQUEST status 0 data 1+179
`},
}

// testCMTalk runs each way in which a connection can begin and end.
func testCMTalk(t *testing.T) {
	for service, d := range cmtalkOutputs {
		for _, ip := range ipNames {
			for _, r := range roles {
				c := reportCell{Section: "cm", Operation: "private data, refusals, disconnection (`cmtalk`)", Service: service,
					Role: r.String(), IP: ip}
				runCell(t, c, func() error {
					argv := func(side string) []string {
						return []string{theLab.programPath("cmtalk"), side, r.resp().ip[ip], d.space}
					}
					server, err := r.resp().startProgram(argv("-s"))
					if err != nil {
						return err
					}
					client, err := r.req().startProgram(argv("-c"))
					if err != nil {
						return err
					}
					cstat, cout, err := client(toolTimeout)
					if err != nil {
						return err
					}
					sstat, sout, err := server(time.Second)
					if err != nil {
						return err
					}
					if got := groupByDialogue(cout); got != d.active || cstat != 0 {
						return fmt.Errorf("%s: exit status %d, active side: got\n%swant\n%s", r.req().name, cstat, got, d.active)
					}
					if got := groupByDialogue(sout); got != d.passive || sstat != 0 {
						return fmt.Errorf("%s: exit status %d, passive side: got\n%swant\n%s", r.resp().name, sstat, got, d.passive)
					}
					return nil
				})
			}
		}
	}
}

// groupByDialogue groups the lines by dialogue, because the end of one dialogue and the beginning of the next are
// concurrent.
func groupByDialogue(out string) string {
	lines := strings.SplitAfter(out, "\n")
	slices.SortStableFunc(lines, func(a, b string) int { return strings.Compare(a[:min(1, len(a))], b[:min(1, len(b))]) })
	return "\n" + strings.Join(lines, "")
}

// testCMCapture checks the messages of the two sides with tshark. Each side must send each kind of message, and no
// message may be malformed.
func testCMCapture(t *testing.T) {
	file := filepath.Join(theLab.dir, "cm.pcap")
	if err := extractPackets(theLab.pcap, file, func(f *frame) bool { return f.packet.BTH().DestQPN() == 1 }); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("tshark", "-r", file, "-T", "fields", "-e", "infiniband.mad.attributeid", "-e",
		"_ws.malformed", "-e", "ip.src", "-e", "ipv6.src").Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for line := range strings.Lines(string(out)) {
		field := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(field) != 4 || field[1] != "" {
			t.Errorf("line of tshark: got the malformed %q", line)
			continue
		}
		for _, p := range []*peer{kernelPeer, verbenaPeer} {
			if slices.Contains(slices.Collect(maps.Values(p.ip)), field[2]+field[3]) {
				seen[p.name+" "+field[0]]++
			}
		}
	}
	t.Logf("messages: %v", seen)
	for _, attribute := range []string{"0x0010", "0x0012", "0x0013", "0x0014", "0x0015", "0x0016", "0x0017", "0x0018"} {
		for _, p := range []*peer{kernelPeer, verbenaPeer} {
			if seen[p.name+" "+attribute] == 0 {
				t.Errorf("%s: got no message %s in the capture, want one", p.name, attribute)
			}
		}
	}
}

// extractPackets copies selected packets of a capture.
func extractPackets(from, to string, which func(*frame) bool) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	r, err := pcapgo.NewReader(in)
	if err != nil {
		return err
	}
	return writeFile(to, func(out *bufio.Writer) {
		w := pcapgo.NewWriter(out)
		_ = w.WriteFileHeader(r.Snaplen(), r.LinkType())
		for {
			data, info, err := r.ReadPacketData()
			if err != nil { // the guest is still writing, so the last packet may be incomplete
				return
			}
			if f, ok := parseFrame(data); ok && which(f) {
				_ = w.WritePacket(info, data)
			}
		}
	})
}

// testCMPrograms connects programs through the connection managers of the two sides.
func testCMPrograms(t *testing.T) {
	testCMTalk(t)
	for _, tl := range cmTools {
		for _, ip := range tl.ips {
			for _, r := range roles {
				c := reportCell{Section: "cm", Operation: "`" + tl.what + "`", Service: tl.service, Role: r.String(), IP: ip}
				runCell(t, c, func() error { return tl.run(r, ip) })
			}
		}
	}
}

func (tl *cmTool) run(r role, ip string) error {
	argv := func(line string) []string { return strings.Fields(strings.ReplaceAll(line, "ADDR", r.resp().ip[ip])) }
	var server func(time.Duration) (int, string, error)
	if tl.server != "" {
		var err error
		if server, err = r.resp().startProgram(argv(tl.server)); err != nil {
			return err
		}
	}
	// There is no signal that a program in the guest is listening. A client that connects too early is refused and
	// tries again.
	var stat int
	var out string
	for range 20 {
		client, err := r.req().startProgram(argv(tl.client))
		if err != nil {
			return err
		}
		if stat, out, err = client(toolTimeout); err != nil {
			return err
		}
		if tl.endedWithoutError(stat, out) || tl.refused {
			break
		}
		time.Sleep(300 * time.Millisecond)
	}
	if tl.refused {
		if stat == 0 || !strings.Contains(out, "REJECTED, error 8") {
			return fmt.Errorf("%s: exit status %d, want a rejection: %s", r.req().name, stat, lastLines(out))
		}
		return nil
	}
	wait := toolTimeout
	if !tl.endedWithoutError(stat, out) || !tl.ends {
		wait = time.Second
	}
	sstat, sout, err := server(wait)
	if err != nil {
		return err
	}
	if !tl.endedWithoutError(stat, out) || tl.ends && !tl.endedWithoutError(sstat, sout) {
		return fmt.Errorf("%s: client: exit status %d: %s; %s: server: exit status %d: %s", r.req().name, stat,
			lastLines(out),
			r.resp().name, sstat, lastLines(sout))
	}
	return nil
}

// endedWithoutError reports whether a side ended without an error. Up to rdma-core 58, an rping that is done may report
// a failure. Its main thread destroys the event channel while another thread is about to read the channel (fixed by
// rdma-core's f3ae6534).
func (tl *cmTool) endedWithoutError(stat int, out string) bool {
	race := tl.what == "rping" && stat == 255 && strings.Contains(out, "DISCONNECT EVENT") &&
		strings.Contains(out, "rdma_get_cm_event: Bad file descriptor") && !strings.Contains(out, "failed")
	return stat == 0 || race
}
