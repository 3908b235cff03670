package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// connectionSection returns the section of cmtime, a program that establishes and ends connections by the
// connection manager.
func connectionSection(title, kernel string, paths ...string) Section {
	s := Section{Name: "connections", Title: title, Unit: "µs a connection", Peer: kernel,
		Note: "cmtime: from `rdma_resolve_addr` to ESTABLISHED, with the queue pair; then of that the addresses and routes, the queue pair, " +
			"and `rdma_connect` up to the event, during which the server opens the device and makes its queue pair. " +
			"With 100 concurrent connections, the time per step is for all of them together.",
		Extras: []string{exResolve, exCreateQP, exConnect, exDisconnect}}
	for _, n := range []int{1, 100} {
		g := Group{Name: "one", Short: true}
		if n > 1 {
			g.Name = fmt.Sprintf("%d at once", n)
		}
		for _, path := range paths {
			m := Measurement{Name: path, Kind: Ours, Peer: kernel, Take: measureConnections(path, n)}
			if path == "" {
				m.Name, m.Kind, m.Peer = kernel, Peer, ""
			}
			g.Measurements = append(g.Measurements, m)
		}
		s.Groups = append(s.Groups, g)
	}
	return s
}

// measureConnections runs cmtime once with n connections.
func measureConnections(path string, n int) func(context.Context, *Env) (Sample, error) {
	return func(ctx context.Context, e *Env) (Sample, error) {
		var serverRun, clientRun []string
		addr := ""
		if path == "" {
			var err error
			if addr, err = e.kernelAddr(ctx); err != nil {
				return Sample{}, err
			}
		} else {
			at, from, err := e.sideEnvs(ctx, path)
			if err != nil {
				return Sample{}, err
			}
			addr, serverRun, clientRun = at.addr, e.runPrefix(at), e.runPrefix(from)
		}
		number, err := e.freePort()
		if err != nil {
			return Sample{}, err
		}
		port := strconv.Itoa(number)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		server := e.newCommand(ctx, concat(serverRun, []string{"cmtime", "-p", port})...)
		var said bytes.Buffer
		server.Stdout, server.Stderr = &said, &said
		if err := server.Start(); err != nil {
			return Sample{}, err
		}
		defer func() {
			cancel()
			server.Wait()
		}()
		// A server supports only one client. The server creates queue pairs with the completion queue of its first
		// connection, and destroys that queue with the connection.
		client := concat(clientRun, []string{"cmtime", "-p", port, "-c", strconv.Itoa(n), "-s", addr})
		for {
			out, err := e.commandOutput(ctx, client...)
			// The server is not listening yet, and does not report when it listens.
			if err == nil && strings.Contains(out, "REJECTED, error: 8") {
				sleepBetweenPolls(ctx)
				continue
			}
			if err != nil {
				return Sample{}, err
			}
			return parseConnections(out)
		}
	}
}

// kernelAddr returns the address of a device of the kernel's rxe for connections. The device on the loopback interface
// has no route.
func (e *Env) kernelAddr(ctx context.Context) (string, error) {
	const addr, dev, link = "10.98.0.1", "bench0", "rxe1"
	if e.kernelDev {
		return addr, nil
	}
	for _, argv := range [][]string{
		{"modprobe", "dummy"}, {"ip", "link", "add", dev, "type", "dummy"}, {"ip", "addr", "add", addr + "/24", "dev", dev},
		{"ip", "link", "set", dev, "mtu", "4200", "up"}, {"rdma", "link", "add", link, "type", "rxe", "netdev", dev},
	} {
		if _, err := e.commandOutput(ctx, argv...); err != nil {
			return "", err
		}
	}
	const gid = "0000:0000:0000:0000:0000:ffff:0a62:0001" // the GID of addr
	for ctx.Err() == nil {                                // the GID of the address appears slightly later
		for i := range 4 {
			b, _ := os.ReadFile(fmt.Sprintf("/sys/class/infiniband/%s/ports/1/gids/%d", link, i))
			if strings.TrimSpace(string(b)) == gid {
				e.kernelDev = true
				return addr, nil
			}
		}
		sleepBetweenPolls(ctx)
	}
	return "", context.Cause(ctx)
}

// stepLinePattern matches a line of cmtime. The line contains the total time of a step in ms, then its longest,
// shortest and mean time for one connection.
var stepLinePattern = regexp.MustCompile(`(?m)^([a-z]+ [a-z]+|[a-z]+) *: +([\d.]+) +[\d.]+ +[\d.]+ +([\d.]+)$`)

// parseConnections parses the table of cmtime. It returns an error if a connection was not established.
func parseConnections(out string) (Sample, error) {
	if i := strings.Index(out, "RDMA_CM_EVENT"); i >= 0 {
		line, _, _ := strings.Cut(out[i:], "\n")
		return Sample{}, fmt.Errorf("cmtime: a connection failed: %s", line)
	}
	steps := map[string]float64{}
	for _, m := range stepLinePattern.FindAllStringSubmatch(out, -1) {
		v, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			return Sample{}, err
		}
		steps[m[1]] = v
	}
	for _, name := range []string{"resolve addr", "resolve route", "create qp", "connect", "disconnect"} {
		if steps[name] <= 0 {
			return Sample{}, fmt.Errorf("no time of %q in the output: %s", name, lastLines(out))
		}
	}
	resolve := steps["resolve addr"] + steps["resolve route"]
	return Sample{resolve + steps["create qp"] + steps["connect"], map[string]float64{
		exResolve: resolve, exCreateQP: steps["create qp"], exConnect: steps["connect"],
		exDisconnect: steps["disconnect"]}}, nil
}
