// Command bench takes the figures of docs/benchmarks.md: ibv_rc_pingpong and ib_write_bw, unmodified, under
// `verbena run`, over the same-service shortcut and over the wire, each beside a TCP exchange between two plain
// processes of the same sizes in the same run. It prints Markdown. `make bench` runs it.
package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

var sizes = []int{64, 4096, 65536, 1048576}

var (
	verbena = flag.String("verbena", "bin/verbena", "the binary")
	rounds  = flag.Int("rounds", 5, "times that each figure is taken; the median is printed")
	starts  = flag.Bool("startup", false, "only how long programs take to start")
	peer    = flag.String("tcp-peer", "", "be the server of the TCP exchange, at this address (used by bench itself)")
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("bench: ")
	flag.Parse()
	if *peer != "" {
		tcpServer(*peer)
		return
	}
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	dir, err := os.MkdirTemp("", "verbena-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var services []*exec.Cmd
	defer func() {
		for _, s := range services {
			s.Process.Signal(syscall.SIGTERM)
			s.Wait()
		}
	}()
	signal.Ignore(syscall.SIGPIPE)
	paths := []struct {
		name, socket string
		args         []string
	}{
		{"shortcut", filepath.Join(dir, "short"), []string{"--link", "rxe0=127.0.0.41"}},
		{"wire", filepath.Join(dir, "wire"), []string{"--link", "rxe0=127.0.0.42", "--wire"}},
	}
	for _, p := range paths {
		s := exec.Command(*verbena, append([]string{"serve", "--socket", p.socket}, p.args...)...)
		var log bytes.Buffer
		s.Stderr = &log
		if err := s.Start(); err != nil {
			return err
		}
		services = append(services, s)
		if !until(5*time.Second, func() bool { return exec.Command(*verbena, "link", "show", "--socket", p.socket).Run() == nil }) {
			return fmt.Errorf("the service does not start: %s", log.String())
		}
	}

	fmt.Printf("Taken on %s with `make bench`; %s, kernel %s, %d cores, %s.\n\n", time.Now().UTC().Format(time.DateOnly),
		cpu(), kernel(), runtime.NumCPU(), runtime.Version())
	fmt.Printf("Medians of %d rounds, the columns of a row taken in turn.\n\n", *rounds)

	if err := startUp(dir, paths[0].socket); err != nil || *starts {
		return err
	}

	fmt.Println("Round trip of `ibv_rc_pingpong -m 4096`, in microseconds, server and client polling:")
	fmt.Println()
	fmt.Println("| bytes | shortcut | wire | wire, events (-e) | TCP, blocking | wire / TCP |")
	fmt.Println("|---:|---:|---:|---:|---:|---:|")
	for _, size := range sizes {
		n := max(200, min(10000, 128<<20/size))
		var short, wire, event, tcp []float64
		for range *rounds {
			for _, m := range []struct {
				to     *[]float64
				socket string
				extra  []string
			}{{&short, paths[0].socket, nil}, {&wire, paths[1].socket, nil}, {&event, paths[1].socket, []string{"-e"}}} {
				args := append([]string{"ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-m", "4096", "-s", fmt.Sprint(size), "-n", fmt.Sprint(n)}, m.extra...)
				out, err := pair(m.socket, args)
				if err != nil {
					return err
				}
				v, err := figure(out, `= ([\d.]+) usec/iter`)
				if err != nil {
					return err
				}
				*m.to = append(*m.to, v)
			}
			v, err := tcpPingpong(size, n)
			if err != nil {
				return err
			}
			tcp = append(tcp, v)
		}
		fmt.Printf("| %d | %.1f | %.1f | %.1f | %.1f | %.2f |\n", size, median(short), median(wire), median(event), median(tcp), median(wire)/median(tcp))
	}

	for _, tool := range []string{"ib_send_bw", "ib_write_bw", "ib_read_bw"} {
		fmt.Printf("\nBandwidth of `%s`, in MB/s (10^6 bytes):\n\n", tool)
		fmt.Println("| bytes | shortcut | wire | TCP stream | wire / TCP |")
		fmt.Println("|---:|---:|---:|---:|---:|")
		for _, size := range sizes {
			n := max(500, min(20000, 1<<30/size))
			var short, wire, tcp []float64
			for range *rounds {
				for i, to := range []*[]float64{&short, &wire} {
					out, err := pair(paths[i].socket, []string{tool, "-d", "rxe0", "-x", "1", "-F", "-m", "4096", "-s", fmt.Sprint(size), "-n", fmt.Sprint(n), "--report_gbits"})
					if err != nil {
						return err
					}
					v, err := figure(out, `(?m)^\s*\d+\s+\d+\s+[\d.]+\s+([\d.]+)\s+[\d.]+\s*$`)
					if err != nil {
						return err
					}
					*to = append(*to, v*1000/8)
				}
				v, err := tcpStream(size, n)
				if err != nil {
					return err
				}
				tcp = append(tcp, v)
			}
			fmt.Printf("| %d | %.0f | %.0f | %.0f | %.2f |\n", size, median(short), median(wire), median(tcp), median(wire)/median(tcp))
		}
	}
	return nil
}

var nextPort = 19200

// pair runs server and client of one program to the end and returns what the client printed.
func pair(socket string, args []string) (string, error) {
	nextPort++
	run := append([]string{"run", "--socket", socket, "--"}, append(args, "-p", fmt.Sprint(nextPort))...)
	server := exec.Command(*verbena, run...)
	var sout bytes.Buffer
	server.Stdout, server.Stderr = &sout, &sout
	if err := server.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	timer := time.AfterFunc(2*time.Minute, func() { server.Process.Kill() })
	defer timer.Stop()
	until(5*time.Second, func() bool { return listening(nextPort) || len(ended) > 0 })
	out, err := exec.Command(*verbena, append(run, "127.0.0.1")...).CombinedOutput()
	if err != nil {
		server.Process.Signal(syscall.SIGTERM)
	}
	if serr := <-ended; err == nil {
		err = serr
	}
	if err != nil {
		return "", fmt.Errorf("%v: %w\n%s%s", args, err, sout.String(), out)
	}
	return string(out), nil
}

func listening(port int) bool {
	for _, f := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, _ := os.ReadFile(f)
		for l := range strings.Lines(string(b)) {
			if w := strings.Fields(l); len(w) > 3 && strings.HasSuffix(w[1], fmt.Sprintf(":%04X", port)) && w[3] == "0A" {
				return true
			}
		}
	}
	return false
}

func until(d time.Duration, done func() bool) bool {
	for deadline := time.Now().Add(d); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if done() {
			return true
		}
	}
	return false
}

func figure(out, pattern string) (float64, error) {
	m := regexp.MustCompile(pattern).FindAllStringSubmatch(out, -1)
	if m == nil {
		return 0, fmt.Errorf("no figure in: %s", out)
	}
	return strconv.ParseFloat(m[len(m)-1][1], 64)
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// The TCP exchange: a first line says what to do: "echo SIZE" or "sink SIZE".

func tcpServer(addr string) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		log.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		log.Fatal(err)
	}
	r := bufio.NewReaderSize(c, 1<<21)
	var what string
	var size, n int
	if _, err := fmt.Fscanf(r, "%s %d %d\n", &what, &size, &n); err != nil {
		log.Fatal(err)
	}
	buf := make([]byte, size)
	for range n {
		if _, err := io.ReadFull(r, buf); err != nil {
			log.Fatal(err)
		}
		if what == "echo" {
			c.Write(buf)
		}
	}
	c.Write(buf[:1])
}

func tcpExchange(what string, size, n int) (time.Duration, error) {
	nextPort++
	addr := fmt.Sprintf("127.0.0.1:%d", nextPort)
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	server := exec.Command(self, "-tcp-peer", addr)
	server.Stderr = os.Stderr
	if err := server.Start(); err != nil {
		return 0, err
	}
	defer server.Wait()
	until(5*time.Second, func() bool { return listening(nextPort) })
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	fmt.Fprintf(c, "%s %d %d\n", what, size, n)
	buf := make([]byte, size)
	start := time.Now()
	for range n {
		if _, err := c.Write(buf); err != nil {
			return 0, err
		}
		if what == "echo" {
			if _, err := io.ReadFull(c, buf); err != nil {
				return 0, err
			}
		}
	}
	if _, err := io.ReadFull(c, buf[:1]); err != nil {
		return 0, err
	}
	return time.Since(start), nil
}

func tcpPingpong(size, n int) (float64, error) {
	d, err := tcpExchange("echo", size, n)
	return float64(d.Nanoseconds()) / 1e3 / float64(n), err
}

func tcpStream(size, n int) (float64, error) {
	d, err := tcpExchange("sink", size, n)
	return float64(size) * float64(n) / 1e6 / d.Seconds(), err
}

func cpu() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	if m := regexp.MustCompile(`(?m)^model name\s*: (.*)$`).FindStringSubmatch(string(b)); m != nil {
		return strings.TrimSpace(m[1])
	}
	return runtime.GOARCH
}

func kernel() string {
	b, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.SplitN(strings.TrimSpace(string(b)), "-", 2)[0]
}
