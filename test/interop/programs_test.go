//go:build interop

package interop

import (
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// interopTool is a program with a server on the responder's side and a client on the requester's side.
type interopTool struct {
	program string
	service string
	args    string // GID represents the index of the GID
}

const (
	pingpong = "-d rxe0 -g GID -c -n 100 -s 9000 -m 1024"
	latency  = "-d rxe0 -x GID -F -n 100 -s 64"
	bulk     = "-d rxe0 -x GID -F -n 50 -s 65536 -u 18"
)

var interopTools = []interopTool{
	{"ibv_rc_pingpong", "RC", pingpong},
	{"ibv_rc_pingpong", "RC", pingpong + " -e"},
	{"ibv_uc_pingpong", "UC", pingpong},
	{"ibv_ud_pingpong", "UD", "-d rxe0 -g GID -c -n 100 -s 1024"},
	{"ibv_srq_pingpong", "RC", "-d rxe0 -g GID -c -n 100 -s 4096 -q 4"},
	{"ib_send_lat", "RC", latency + " -c RC"},
	{"ib_send_lat", "UC", latency + " -c UC"},
	{"ib_send_lat", "UD", latency + " -c UD"},
	{"ib_write_lat", "RC", latency + " -c RC"},
	{"ib_write_lat", "UC", latency + " -c UC"},
	{"ib_read_lat", "RC", latency + " -c RC"},
	{"ib_atomic_lat", "RC", "-d rxe0 -x GID -F -n 100"},
	{"ib_send_bw", "RC", bulk + " -c RC"},
	{"ib_send_bw", "UC", "-d rxe0 -x GID -F -n 50 -s 4096 -c UC"},
	{"ib_send_bw", "UD", "-d rxe0 -x GID -F -n 50 -s 1024 -c UD"},
	{"ib_write_bw", "RC", bulk + " -c RC"},
	{"ib_write_bw", "UC", "-d rxe0 -x GID -F -n 50 -s 4096 -c UC"},
	{"ib_read_bw", "RC", bulk + " -c RC"},
	{"ib_atomic_bw", "RC", "-d rxe0 -x GID -F -n 100 -A FETCH_AND_ADD"},
	{"ib_atomic_bw", "RC", "-d rxe0 -x GID -F -n 100 -A CMP_AND_SWAP"},
}

// toolTimeout limits the time of a program.
const toolTimeout = 60 * time.Second

// testPrograms runs the programs of rdma-core and perftest between the two sides.
func testPrograms(t *testing.T) {
	port := 18800
	for _, tl := range interopTools {
		for _, r := range roles {
			for _, ip := range reportedIPVersions("programs", tl.program, tl.args, r.String()) {
				tl.runReported(t, "programs", r, ip, &port)
			}
		}
	}
}

// runReported runs the program between the two sides, on the TCP ports after *port.
func (tl interopTool) runReported(t *testing.T, section string, r role, ip string, port *int) {
	c := reportCell{
		Section: section, Operation: "`" + tl.program + " " + strings.TrimSpace(optionPattern.ReplaceAllString(tl.args,
			"")) + "`",
		Service: tl.service, Role: r.String(), IP: ip,
	}
	runCell(t, c, func() error {
		var err error
		for range 3 {
			*port++
			err = tl.run(r, ip, *port)
			if err == nil || tl.service == "RC" { // the other services may lose a packet, for which the programs then wait
				break
			}
		}
		return err
	})
}

// commandLine returns the start of the command line.
func (tl interopTool) commandLine() []string {
	c := strings.Fields(tl.program)
	if c[0] == "verbena" {
		c[0] = theLab.verbena
	}
	return c
}

// optionPattern matches options of a program that the table omits.
var optionPattern = regexp.MustCompile(`-d rxe0 |-[gx] GID ?|-F ?`)

func (tl interopTool) run(r role, ip string, port int) error {
	_, err := tl.runForOutput(r, ip, port)
	return err
}

// runForOutput runs the program, and returns the client's output.
func (tl interopTool) runForOutput(r role, ip string, port int) (string, error) {
	argv := func(p *peer) ([]string, error) {
		var index int
		if err := p.callMethod(&index, "gid_index", methodArgs{"gid": p.ip[ip]}); err != nil {
			return nil, err
		}
		a := strings.Fields(strings.ReplaceAll(tl.args, "GID", fmt.Sprint(index)))
		return append(append(tl.commandLine(), "-p", fmt.Sprint(port)), a...), nil
	}
	serverArgs, err := argv(r.resp())
	if err != nil {
		return "", err
	}
	clientArgs, err := argv(r.req())
	if err != nil {
		return "", err
	}
	server, err := r.resp().startProgram(serverArgs)
	if err != nil {
		return "", err
	}
	var up bool
	if err := r.resp().callMethod(&up, "listening", methodArgs{"port": port, "timeout": 30.0}); err != nil || !up {
		_, out, _ := server(0)
		return "", fmt.Errorf("%s: wait for the server to listen: %v: %s", r.resp().name, err, lastLines(out))
	}
	client, err := r.req().startProgram(append(clientArgs, r.resp().ip["IPv4"]))
	if err != nil {
		return "", err
	}
	cstat, cout, err := client(toolTimeout)
	if err != nil {
		return "", err
	}
	wait := toolTimeout
	if cstat != 0 {
		wait = time.Second
	}
	sstat, sout, err := server(wait)
	if err != nil {
		return "", err
	}
	if cstat != 0 || sstat != 0 {
		return "", fmt.Errorf("%s: client: exit status %d: %s; %s: server: exit status %d: %s", r.req().name, cstat,
			lastLines(cout),
			r.resp().name, sstat, lastLines(sout))
	}
	return cout, nil
}

func lastLines(s string) string {
	l := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(l[max(0, len(l)-3):], " | ")
}

// startProgram starts a program on a peer's side. The returned function waits for the end of the program.
func (p *peer) startProgram(argv []string) (end func(time.Duration) (int, string, error), err error) {
	if p.name == "Verbena" { // a separate `verbena run`
		pr, err := p.lab.launch(argv[0], append([]string{p.lab.verbena, "run", "--"}, argv...)...)
		if err != nil {
			return nil, err
		}
		return func(timeout time.Duration) (int, string, error) {
			select {
			case <-pr.done:
			case <-time.After(timeout):
				pr.stop(syscall.SIGKILL)
			}
			return pr.cmd.ProcessState.ExitCode(), pr.out.String(), nil
		}, nil
	}
	var id int
	if err := p.callMethod(&id, "start", methodArgs{"argv": argv}); err != nil {
		return nil, err
	}
	return func(timeout time.Duration) (int, string, error) {
		var res struct {
			Status int
			Out    string
		}
		err := p.callMethod(&res, "end", methodArgs{"id": id, "timeout": timeout.Seconds()})
		return res.Status, res.Out, err
	}, nil
}
