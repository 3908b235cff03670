package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"verbena/ib"
	"verbena/internal/ctl"
)

type waitCmd struct {
	Timeout time.Duration `help:"Time after which to stop waiting and fail." default:"30s" placeholder:"D" complete:"none"`
	Listen  waitEndpoint  `help:"Wait until a program listens on a TCP port of any address, or on a Unix socket at a path. Needs no service." placeholder:"PORT|PATH" xor:"what" complete:"file"`
	Open    string        `help:"Wait until a program has this device open." placeholder:"DEV" xor:"what" complete:"device"`
	Active  string        `help:"Wait until this device is plugged in and its port is active, for example after 'dev reset' or 'dev plug'." placeholder:"DEV" xor:"what" complete:"device"`
}

func (w *waitCmd) Help() string {
	return `Without --listen, --open and --active it waits until a service is ready; it starts none. Programs that meet over TCP, such as
ibv_rc_pingpong and ib_send_bw (both on port 18515), fail if the client comes before the server listens. Exit code: 0, or 125
after the time-out.

Examples:
  verbena run -- ibv_rc_pingpong -d rxe0 -g 1 &
  verbena wait --listen 18515
  verbena run -- ibv_rc_pingpong -d rxe0 -g 1 127.0.0.1`
}

// conditionPollInterval is the interval between two checks of the condition.
const conditionPollInterval = 10 * time.Millisecond

func (w *waitCmd) Run(c *cli) error {
	if w.Timeout <= 0 {
		return fmt.Errorf("wait: --timeout %v is not more than 0", w.Timeout)
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.Timeout)
	defer cancel()
	if w.Listen != (waitEndpoint{}) {
		if !pollUntilTrue(ctx, w.Listen.isListening) {
			return fmt.Errorf("wait: no program listens on %v after %v; start the server, or raise --timeout",
				w.Listen, w.Timeout)
		}
		return nil
	}
	loc, err := c.serviceLocation()
	if err != nil {
		return err
	}
	client, err := ctl.Await(ctx, loc)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("wait: no service is ready at %s after %v; start one by `verbena serve --daemon`, or raise --timeout",
			loc.Socket, w.Timeout)
	}
	if err != nil {
		return err
	}
	defer client.Close()
	var ready func(*ctl.Client) (bool, error)
	late := ""
	switch {
	case w.Open != "":
		ready = w.isDeviceOpened
		late = "no program has device " + w.Open + " open after %v; start the program by `verbena run`, or raise --timeout"
	case w.Active != "":
		ready = w.isPortActive
		late = "device " + w.Active +
			" is not active after %v; see `verbena link show` and `verbena dev show`, or raise --timeout"
	default:
		return nil
	}
	done := false
	if !pollUntilTrue(ctx, func() bool {
		done, err = ready(client)
		return done || err != nil
	}) {
		return fmt.Errorf("wait: "+late, w.Timeout)
	}
	return err
}

// isPortActive reports whether the device is plugged in and its port is active.
func (w *waitCmd) isPortActive(client *ctl.Client) (bool, error) {
	r, err := client.Do(&ctl.Request{Op: ctl.OpLinkShow})
	if err != nil {
		return false, err
	}
	var names []string
	for _, l := range r.Links {
		if l.Name == w.Active {
			return l.State == ib.PortActive.String(), nil
		}
		names = append(names, l.Name)
	}
	return false, newNoDeviceError(w.Active, names)
}

func newNoDeviceError(name string, names []string) error {
	return fmt.Errorf("wait: no device is named %q (the devices are: %s)", name, strings.Join(names, ", "))
}

// isDeviceOpened reports whether a program has opened the device.
func (w *waitCmd) isDeviceOpened(client *ctl.Client) (bool, error) {
	r, err := client.Do(&ctl.Request{Op: ctl.OpDevShow})
	if err != nil {
		return false, err
	}
	var names []string
	for _, d := range r.Devs {
		if d.Name == w.Open {
			return d.Contexts > 0, nil
		}
		names = append(names, d.Name)
	}
	return false, newNoDeviceError(w.Open, names)
}

// pollUntilTrue reports whether the condition became true before ctx was done.
func pollUntilTrue(ctx context.Context, condition func() bool) bool {
	for {
		if condition() {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(conditionPollInterval):
		}
	}
}

// waitEndpoint is a TCP port or the path of a Unix socket.
type waitEndpoint struct {
	port uint16
	path string
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (e *waitEndpoint) UnmarshalText(b []byte) error {
	text := string(b)
	if strings.Contains(text, "/") {
		*e = waitEndpoint{path: text}
		return nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return fmt.Errorf("%q is neither a TCP port from 1 to 65535 nor the path of a socket", text)
	}
	*e = waitEndpoint{port: uint16(n)}
	return nil
}

func (e waitEndpoint) String() string {
	if e.path != "" {
		return "socket " + e.path
	}
	return fmt.Sprintf("TCP port %d", e.port)
}

// isListening reports whether a socket of this network namespace listens on the endpoint.
func (e waitEndpoint) isListening() bool {
	if e.path != "" {
		b, err := os.ReadFile("/proc/net/unix")
		return err == nil && isListeningUnix(string(b), e.path)
	}
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		// a kernel without IPv6 has no such file
		if b, err := os.ReadFile(name); err == nil && isListeningTCP(string(b), e.port) {
			return true
		}
	}
	return false
}

// isListeningTCP searches the text of /proc/net/tcp for the port (proc_net_tcp.rst in the kernel's documentation).
func isListeningTCP(table string, port uint16) bool {
	const stateListen = "0A"
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[3] != stateListen {
			continue
		}
		_, hex, _ := strings.Cut(fields[1], ":")
		if n, err := strconv.ParseUint(hex, 16, 16); err == nil && uint16(n) == port {
			return true
		}
	}
	return false
}

// isListeningUnix searches the text of /proc/net/unix for the path of a bound socket (proc_pid_net(5)).
func isListeningUnix(table, path string) bool {
	const flagAccepting = "00010000" // __SO_ACCEPTCON
	for line := range strings.Lines(table) {
		// Num: The columns are RefCount Protocol Flags Type St Inode Path. The path follows a single space, and may
		// contain spaces.
		fields := strings.Fields(line)
		head, ok := strings.CutSuffix(strings.TrimSuffix(line, "\n"), " "+path)
		if ok && len(fields) >= 8 && fields[3] == flagAccepting && len(strings.Fields(head)) == 7 {
			return true
		}
	}
	return false
}
