//go:build interop

package interop

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// cmTool is a program of librdmacm that talks with itself. ADDR is the server's address.
type cmTool struct {
	what           string
	service        string
	server, client string
	ips            []string
	ends           bool // the server ends with its client
	refused        bool // the client is to be refused
}

var cmTools = []cmTool{
	{"rping", "RC", "rping -s -a ADDR -C 5", "rping -c -a ADDR -C 5 -V", ipNames, true, false},
	{"ucmatose", "RC", "ucmatose -b ADDR", "ucmatose -s ADDR", ipNames, true, false},
	{"udaddy", "UD", "udaddy -b ADDR", "udaddy -s ADDR", ipNames, true, false},
	{"rdma_client", "RC", "rdma_server", "rdma_client -s ADDR", ipNames[:1], true, false},
	{"rdma_xclient -c r", "RC", "rdma_xserver -c r", "rdma_xclient -c r -s ADDR", ipNames[:1], true, false},
	{"riostream", "RC", "riostream -S 4096 -I 20 -C 2", "riostream -s ADDR -S 4096 -I 20 -C 2", ipNames[:1], true, false},
	{"cmtime -c 100", "RC", "cmtime", "cmtime -s ADDR -c 100", ipNames[:1], false, false},
	{"rping at a port where nobody listens", "RC", "", "rping -c -a ADDR -p 9999 -C 1", ipNames[:1], false, true},
}

// testCM connects programs by the connection managers of the two.
func testCM(t *testing.T) {
	for _, tl := range cmTools {
		for _, ip := range tl.ips {
			for _, r := range roles {
				c := cell{Section: "cm", Operation: "`" + tl.what + "`", Service: tl.service, Role: r.String(), IP: ip}
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
		if server, err = r.resp().start(argv(tl.server)); err != nil {
			return err
		}
	}
	// Nothing tells when a program in the guest listens: who comes too early is refused, and comes again.
	var stat int
	var out string
	for range 20 {
		client, err := r.req().start(argv(tl.client))
		if err != nil {
			return err
		}
		if stat, out, err = client(toolTime); err != nil {
			return err
		}
		if stat == 0 || tl.refused {
			break
		}
		time.Sleep(300 * time.Millisecond)
	}
	if tl.refused {
		if stat == 0 || !strings.Contains(out, "REJECTED, error 8") {
			return fmt.Errorf("%s: not refused: exit status %d: %s", r.req().name, stat, lastLines(out))
		}
		return nil
	}
	wait := toolTime
	if stat != 0 || !tl.ends {
		wait = time.Second
	}
	sstat, sout, err := server(wait)
	if err != nil {
		return err
	}
	if stat != 0 || tl.ends && sstat != 0 {
		return fmt.Errorf("%s: client: exit status %d: %s; %s: server: exit status %d: %s", r.req().name, stat, lastLines(out),
			r.resp().name, sstat, lastLines(sout))
	}
	return nil
}
