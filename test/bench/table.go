package main

import (
	"fmt"
	"strconv"
)

// operationCosts are approximate times of one operation by size, in microseconds. The times determine the number of
// operations.
type operationCosts map[int]float64

var (
	sizeNames = map[int]string{64: "64 B", 4096: "4 KB", 65536: "64 KB", 1 << 20: "1 MB"}
	sizes     = []int{64, 4096, 65536, 1 << 20}

	trapCosts = operationCosts{64: 11, 4096: 12, 65536: 25, 1 << 20: 220}
	// for a round trip; half for a message in a stream
	shortcutCosts  = operationCosts{64: 25, 4096: 28, 65536: 60, 1 << 20: 900}
	wireCosts      = operationCosts{64: 90, 4096: 100, 65536: 250, 1 << 20: 2500}
	tcpCosts       = operationCosts{64: 30, 4096: 40, 65536: 100, 1 << 20: 900}
	fabricCosts    = operationCosts{64: 80, 4096: 100, 65536: 150, 1 << 20: 1200}
	fabricUDPCosts = operationCosts{64: 20, 4096: 35, 65536: 350, 1 << 20: 5000}
)

func pathCosts(path string) operationCosts {
	if path == shortcut {
		return shortcutCosts
	}
	return wireCosts
}

// fullRunSections returns all measurements of a full run.
func fullRunSections() []Section {
	sections := []Section{floorSection(), latencySection(), bandwidthSection(), variantSection(), streamVariantSection(),
		twoServicesSection(), mixedSizesSection(), modeSection(), embeddedSection()}
	sections = append(sections, goSections()...)
	return append(sections, connectionSection("Connections", "", shortcut, wire, betweenVeth), startUpSection(),
		idleSection(), scaleSection(), devicesSection())
}

func floorSection() Section {
	return Section{Name: "floors", Title: "Floors", Unit: "µs per operation",
		Note:   "None of Verbena's code. Streams are in messages of 64 KB, in packets of 4 KB.",
		Extras: []string{exMean, exP99},
		Groups: []Group{{Name: "all", Short: true, Measurements: []Measurement{
			{Name: trapCall, Kind: Floor, Take: measureFloor(1, 6, "trap", "call")},
			{Name: vm64, Kind: Floor, Take: measureFloor(1, 2, "copy", "vm", "64")},
			{Name: vm64K, Kind: Floor, Take: measureFloor(1, 8, "copy", "vm", "65536")},
			{Name: vm1M, Kind: Floor, Take: measureFloor(1, 120, "copy", "vm", "1048576")},
			{Name: copy64, Kind: Floor, Take: measureFloor(1, 0.02, "copy", "memcpy", "64")},
			{Name: copy1M, Kind: Floor, Take: measureFloor(1, 60, "copy", "memcpy", "1048576")},
			{Name: udpPing, Kind: Floor, Take: measureFloor(1, 6, "udp", "pingpong", "64")},
			{Name: udpPlain, Kind: Floor, Take: measureFloor(1, 60, "udp", "plain", "65536")},
			{Name: udpOffload, Kind: Floor, Take: measureFloor(1, 18, "udp", "offload", "65536")},
			{Name: udpCRC, Kind: Floor, Take: measureFloor(1, 20, "udp", "offload-crc", "65536")},
			{Name: udpCRCGo, Kind: Floor, Take: measureFloor(1, 22, "goudp", "65536")},
			{Name: tcpPingFlat, Kind: Peer, Take: measureFloor(1, 30, "tcp", "pingpong", "64")},
			{Name: tcpFlat, Kind: Peer, Take: measureFloor(1, 30, "tcp", "stream", "65536")},
		}}}}
}

func latencySection() Section {
	s := Section{Name: "latency", Title: "Latency", Unit: "µs",
		Note: "perftest's typical (median) time, of half a round trip for SEND and WRITE and of all of it for READ; both programs poll. " +
			"The floor of the shortcut is a trapped call with one process_vm_readv and one writev. The floor of the wire is a C program " +
			"with the same steps: also UDP, CRC-32 at both ends and an acknowledgement, in one thread. The peer is blocking TCP.",
		Peer:   "TCP",
		Extras: []string{exMean, exP99, exService, exClient, exServer, exOnPath}}
	for _, size := range sizes {
		n := strconv.Itoa(size)
		g := Group{Name: sizeNames[size], Short: size == 64, Measurements: []Measurement{
			{Name: "trap, process_vm, ping-pong", Kind: Floor, Take: measureFloor(1, 2*trapCosts[size], "trap", "pingpong", n)},
			{Name: "trap, process_vm", Kind: Floor, Take: measureFloor(1, trapCosts[size], "trap", "stream", n)},
			{Name: sameSteps, Kind: Floor, Take: measureFloor(1, 3*trapCosts[size], "trap", "wire", n)},
			{Name: "TCP, blocking", Kind: Peer, Take: measureFloor(1, tcpCosts[size], "tcp", "pingpong", n)},
			{Name: "libfabric tcp, msg", Kind: Peer, Take: measureFabric("tcp", "msg", size, fabricCosts[size])},
			{Name: "libfabric udp, rdm", Kind: Peer, Take: measureFabric("udp;ofi_rxd", "rdm", size, fabricUDPCosts[size])},
		}}
		udp := ""
		if size <= 4096 { // one datagram
			udp = "UDP, polling"
			g.Measurements = append(g.Measurements,
				Measurement{Name: udp, Kind: Floor, Take: measureFloor(1, 8, "udp", "pingpong", n)},
				Measurement{Name: udp + ", round trip", Kind: Floor, Take: measureFloor(2, 8, "udp", "pingpong", n)})
		}
		if size == 64 {
			g.Measurements = append(g.Measurements,
				Measurement{Name: "TCP, polling", Kind: Peer, Take: measureFloor(1, 15, "tcp", "busy", n)},
				Measurement{Name: "libfabric tcp, rdm", Kind: Peer, Take: measureFabric("tcp;ofi_rxm", "rdm", size,
					fabricCosts[size])})
		}
		for _, op := range []string{"SEND", "WRITE", "READ"} {
			floors := map[string]string{shortcut: "trap, process_vm, ping-pong", wire: sameSteps}
			if op == "READ" {
				floors[shortcut], floors[wire] = "trap, process_vm", ""
				if udp != "" {
					floors[wire] = udp + ", round trip"
				}
			}
			for _, path := range []string{shortcut, wire} {
				peer := "TCP, blocking"
				if op == "READ" {
					peer = "" // the peer measures half a round trip
				}
				x := exchange{path: path, tool: perftestTools[op] + "_lat", size: size, each: pathCosts(path)[size]}
				g.Measurements = append(g.Measurements, Measurement{Name: op + ", " + path, Kind: Ours, Floor: floors[path],
					Peer: peer, Take: x.measure})
			}
		}
		s.Groups = append(s.Groups, g)
	}
	return s
}

// sameSteps is a C program with the steps of a message on the wire.
const sameSteps = "trap, process_vm, UDP, CRC-32, ACK"

var perftestTools = map[string]string{"SEND": "ib_send", "WRITE": "ib_write", "READ": "ib_read"}

func bandwidthSection() Section {
	s := Section{Name: "bandwidth", Title: "Bandwidth", Unit: "MB/s (10^6 bytes)",
		Note: "One queue pair, polling; more is better. The server of WRITE and READ sleeps: its processor time is what a passive " +
			"target costs. The floor of the wire is the UDP stream with GSO, GRO and CRC-32 in Go, in packets of 4 KB; the peer is a TCP stream.",
		Peer:   "TCP",
		Extras: []string{exRate, exService, exClient, exServer, exOnPath}}
	for _, size := range sizes {
		n := strconv.Itoa(size)
		g := Group{Name: sizeNames[size], Short: size == 64 || size == 65536, Measurements: []Measurement{
			{Name: "trap, process_vm", Kind: Floor, Take: measureStream(size, trapCosts[size], "trap", "stream", n)},
			{Name: "TCP stream", Kind: Peer, Take: measureStream(size, tcpStreamCosts[size], "tcp", "stream", n)},
		}}
		udp := ""
		if size >= 4096 {
			udp = "UDP, CRC-32, Go"
			g.Measurements = append(g.Measurements,
				Measurement{Name: udp, Kind: Floor, Take: measureStream(size, float64(size)/2500, "goudp", n)},
				Measurement{Name: "UDP, CRC-32, C", Kind: Floor, Take: measureStream(size, float64(size)/2500, "udp",
					"offload-crc", n)})
		}
		for _, op := range []string{"SEND", "WRITE", "READ"} {
			for _, path := range []string{shortcut, wire} {
				floors := map[string]string{shortcut: "trap, process_vm", wire: udp}
				x := exchange{path: path, tool: perftestTools[op] + "_bw", size: size, each: streamCosts[path][size]}
				g.Measurements = append(g.Measurements, Measurement{Name: op + ", " + path, Kind: Ours, Floor: floors[path],
					Peer: "TCP stream", Take: x.measure})
			}
		}
		s.Groups = append(s.Groups, g)
	}
	return s
}

var (
	tcpStreamCosts = operationCosts{64: 1, 4096: 4, 65536: 40, 1 << 20: 400}
	streamCosts    = map[string]operationCosts{
		shortcut: {64: 16, 4096: 22, 65536: 45, 1 << 20: 450},
		wire:     {64: 16, 4096: 22, 65536: 80, 1 << 20: 1000},
		between:  {64: 16, 4096: 22, 65536: 120, 1 << 20: 1500}, betweenVeth: {64: 16, 4096: 22, 65536: 120, 1 << 20: 1500},
		"": {64: 16, 4096: 22, 65536: 80, 1 << 20: 1000},
	}
)

func variantSection() Section {
	s := Section{Name: "variants", Title: "Variants of the SEND latency", Unit: "µs",
		Note:   "perftest offers no inline data on rxe devices, so a program of our own (test/bench/floor/verbs.c) sends with and without.",
		Floor:  "plain",
		Extras: []string{exMean, exP99, exService, exClient, exServer, exOnPath}}
	for _, path := range []string{shortcut, wire} {
		for _, size := range []int{64, 65536} {
			plain := exchange{path: path, tool: "ib_send_lat", size: size, each: pathCosts(path)[size]}
			two, events := plain, plain
			two.two = true
			events.events, events.each = true, plain.each+300
			g := Group{Name: path + ", " + sizeNames[size], Measurements: []Measurement{
				{Name: "one device, polling", Kind: Ours, Take: plain.measure},
				{Name: "two devices", Kind: Ours, Floor: "one device, polling", Take: two.measure},
				{Name: "events (-e)", Kind: Ours, Floor: "one device, polling", Take: events.measure},
			}}
			if size == 64 {
				own := exchange{path: path, verbs: true, size: size, each: plain.each}
				inlined := own
				inlined.inlined = true
				g.Measurements = append(g.Measurements, Measurement{Name: "own program", Kind: Ours, Take: own.measure},
					Measurement{Name: "own program, inline", Kind: Ours, Floor: "own program", Take: inlined.measure})
			}
			s.Groups = append(s.Groups, g)
		}
	}
	return s
}

func streamVariantSection() Section {
	s := Section{Name: "streams", Title: "Variants of the bandwidth", Unit: "MB/s (10^6 bytes)",
		Floor:  "plain",
		Extras: []string{exRate, exService, exClient, exServer, exOnPath}}
	for _, path := range []string{shortcut, wire} {
		for _, size := range []int{64, 65536} {
			plain := exchange{path: path, tool: "ib_write_bw", size: size, each: streamCosts[path][size]}
			two, eight := plain, plain
			two.two, eight.qps = true, 8
			send := exchange{path: path, tool: "ib_send_bw", size: size, each: streamCosts[path][size]}
			events := send // perftest waits for events only with SEND
			events.events = true
			s.Groups = append(s.Groups, Group{Name: path + ", " + sizeNames[size], Measurements: []Measurement{
				{Name: "WRITE", Kind: Ours, Take: plain.measure},
				{Name: "WRITE, two devices", Kind: Ours, Floor: "WRITE", Take: two.measure},
				{Name: "WRITE, eight QPs", Kind: Ours, Floor: "WRITE", Take: eight.measure},
				{Name: "SEND", Kind: Ours, Take: send.measure},
				{Name: "SEND, events (-e)", Kind: Ours, Floor: "SEND", Take: events.measure},
			}})
		}
	}
	return s
}

// twoServicesSection measures two services that share only the network. The rows with events show how a service
// performs with a core that no program uses.
func twoServicesSection() Section {
	s := Section{Name: "between", Title: "Between two services", Unit: "MB/s (10^6 bytes)", Floor: "UDP, CRC-32, Go",
		Note: "Each program on a service of its own: over the loopback interface, and over a veth pair between two network namespaces (MTU 4200, " +
			"without root). The floor is the UDP stream with GSO, GRO and CRC-32 in Go, over the loopback interface, in packets of 4 KB. " +
			"With events (-e) both programs sleep, and else both poll, or, of WRITE, one.",
		Peer:   "TCP",
		Extras: []string{exRate, exService, exClient, exServer, exOnPath}}
	for _, size := range []int{65536, 1 << 20} {
		n := strconv.Itoa(size)
		g := Group{Name: sizeNames[size], Measurements: []Measurement{
			{Name: "TCP stream", Kind: Peer, Take: measureStream(size, tcpStreamCosts[size], "tcp", "stream", n)},
			{Name: "UDP, CRC-32, Go", Kind: Floor, Take: measureStream(size, float64(size)/2500, "goudp", n)},
		}}
		for _, path := range []string{between, betweenVeth} {
			for _, op := range []string{"SEND", "WRITE"} {
				x := exchange{path: path, tool: perftestTools[op] + "_bw", size: size, each: streamCosts[path][size]}
				g.Measurements = append(g.Measurements, Measurement{Name: op + ", " + path, Kind: Ours, Floor: "UDP, CRC-32, Go",
					Peer: "TCP stream", Take: x.measure})
				if op == "SEND" {
					x.events = true
					g.Measurements = append(g.Measurements, Measurement{Name: op + " -e, " + path, Kind: Ours,
						Floor: "UDP, CRC-32, Go", Peer: "TCP stream", Take: x.measure})
				}
			}
		}
		s.Groups = append(s.Groups, g)
	}
	return s
}

func mixedSizesSection() Section {
	s := Section{Name: "mix", Title: "WRITEs of all sizes", Unit: "MB/s (10^6 bytes)", Floor: "size by size",
		Note: "One program (test/bench/floor/mix.c) writes to itself, 16 messages at a time: of 100 messages 60 have 64 bytes, 30 4 KB, 9 64 KB and one 1 MB. " +
			"The same messages go size by size on one queue pair, or in random order on queue pairs at random."}
	for _, path := range []string{shortcut, wire} {
		const bySize = "size by size, one QP"
		g := Group{Name: path, Measurements: []Measurement{{Name: bySize, Kind: Ours, Take: measureMixedSizes(path, 0)}}}
		for _, n := range []int{1, 16, 100} {
			g.Measurements = append(g.Measurements, Measurement{Name: fmt.Sprintf("at random, QPs: %d", n), Kind: Ours,
				Floor: bySize, Take: measureMixedSizes(path, n)})
		}
		s.Groups = append(s.Groups, g)
	}
	return s
}

// modeSection compares the modes of verbena run with the ordinary device. The bandwidth is the time of a message.
func modeSection() Section {
	const bytes = "source-changed,-source-after-reply,-target-written"
	modes := []struct{ name, flags string }{{"--weak", "--weak=1"}, {"--sanitize, no bytes", "--sanitize=-" + bytes},
		{"--sanitize", "--sanitize"}, {"--weak --sanitize", "--weak=1 --sanitize"}}
	s := Section{Name: "modes", Title: "Weak mode and the sanitizer", Unit: "µs",
		Note: "SEND on the shortcut, both programs in the same mode: the median of half a round trip, and the mean time of a " +
			"message in a stream. The goals are 2 times the latency with --weak, 1.1 times without comparison of memory, and else 2 times both.",
		Floor: "ordinary"}
	for _, size := range []int{64, 65536} {
		for _, tool := range []string{"ib_send_lat", "ib_send_bw"} {
			x := exchange{path: shortcut, tool: tool, size: size, each: 4 * shortcutCosts[size]}
			what := map[bool]string{true: ", latency", false: ", stream"}[x.isLatencyTest()]
			g := Group{Name: sizeNames[size] + what, Short: size == 64,
				Measurements: []Measurement{{Name: "ordinary", Kind: Floor, Take: x.measureTime}}}
			for _, m := range modes {
				y := x
				y.mode = m.flags
				g.Measurements = append(g.Measurements,
					Measurement{Name: m.name, Kind: Ours, Floor: "ordinary", Take: y.measureTime})
			}
			s.Groups = append(s.Groups, g)
		}
	}
	return s
}

func embeddedSection() Section {
	s := Section{Name: "embedded", Title: "Both ends in one Go process", Unit: "µs",
		Note: "Half a round trip of test/bench/ibpingpong, a consumer of package ib, on one thread; of driver/loopback one message with its receive and both completions. " +
			"The floor of the shortcut is memcpy, that of the wire the UDP ping-pong of two processes.",
		Peer: "loopback"}
	for _, size := range []int{64, 65536, 1 << 20} {
		n := strconv.Itoa(size)
		each := max(2, float64(size)/4000)
		g := Group{Name: sizeNames[size], Measurements: []Measurement{
			{Name: "memcpy", Kind: Floor, Take: measureFloor(1, max(0.02, float64(size)/20000), "copy", "memcpy", n)},
			{Name: "shortcut", Kind: Ours, Floor: "memcpy", Take: measureEmbeddedDevice(size, false, 2*each)},
		}}
		w := Measurement{Name: "wire", Kind: Ours, Take: measureEmbeddedDevice(size, true, 24+4*each)}
		if size == 64 {
			w.Floor = "UDP, polling"
			g.Measurements[1].Peer = "loopback driver"
			g.Measurements = append(g.Measurements, Measurement{Name: w.Floor, Kind: Floor,
				Take: measureFloor(1, 8, "udp", "pingpong", n)},
				Measurement{Name: "loopback driver", Kind: Ours, Take: measureLoopback})
		}
		g.Measurements = append(g.Measurements, w)
		s.Groups = append(s.Groups, g)
	}
	return s
}

func startUpSection() Section {
	s := Section{Name: "startup", Title: "A program from start to end", Unit: "ms",
		Note:   "Median of ten starts in each round; the service is up.",
		Floor:  "by itself",
		Extras: []string{exNinetyth}}
	for _, p := range [][]string{{"true"}, {"ls", "/usr/lib"}, {"ibv_devices"}} {
		s.Groups = append(s.Groups, Group{Name: "`" + p[0] + "`", Measurements: []Measurement{
			{Name: "by itself", Kind: Floor, Take: measureStartUp("", p...)},
			{Name: "verbena run", Kind: Ours, Floor: "by itself", Take: measureStartUp(shortcut, p...)},
			{Name: "verbena run, ptrace_scope 1", Kind: Ours, Floor: "by itself", Take: measureStartUp(launcher, p...)},
		}})
	}
	return s
}

func idleSection() Section {
	return Section{Name: "idle", Title: "A service while nothing happens", Unit: "ms of processor time in 2 s",
		Extras: []string{exRSS, exThreads},
		Groups: []Group{{Name: "one device", Short: true, Measurements: []Measurement{
			{Name: "no program", Kind: Ours, Take: measureIdleService("")},
			{Name: "a context (ibv_asyncwatch)", Kind: Ours, Take: measureIdleService("rxe0", "ibv_asyncwatch")},
			{Name: "a queue pair (ibv_rc_pingpong)", Kind: Ours,
				Take: measureIdleService("local address", "ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-p", "19199")},
		}}}}
}

func scaleSection() Section {
	const none = "none idle"
	s := Section{Name: "scale", Title: "Beside idle queue pairs", Unit: "µs for a WRITE of 64 bytes", Floor: none,
		Note: "One program (test/bench/floor/scale.c) makes contexts and queue pairs, which stay idle, and then uses further ones: typical times. " +
			"Each row has a service of its own. Processor time is the service's while the program waits.",
		Extras: []string{exSend, exCreate, exConnect, exDestroy, exRegister, exDeregister, exIdle, exRSS, exThreads}}
	g := Group{Name: "in RTS", Measurements: []Measurement{{Name: none, Kind: Ours, Take: measureManyQPs(1, 0, "rts")}}}
	for _, n := range []int{30, 100, 1000, 10_000} {
		g.Measurements = append(g.Measurements, Measurement{Name: fmt.Sprintf("%d", n), Kind: Ours, Floor: none,
			Take: measureManyQPs(1, n, "rts")})
	}
	g.Measurements = append(g.Measurements,
		Measurement{Name: "10000 in 1000 contexts", Kind: Ours, Floor: none, Take: measureManyQPs(1000, 10_000, "rts")},
		Measurement{Name: "10000 in ERR", Kind: Ours, Floor: none, Take: measureManyQPs(1, 10_000, "err")})
	s.Groups = []Group{g}
	return s
}

func devicesSection() Section {
	const one = "1"
	s := Section{Name: "devices", Title: "A service with many devices",
		Unit:  "ms from its start until all ports are active",
		Floor: "one device", Extras: []string{exStop, exStartCPU, exRSS, exThreads}}
	g := Group{Name: "devices", Measurements: []Measurement{{Name: one, Kind: Ours, Take: measureDevices(1)}}}
	for _, n := range []int{4, 16, 64, 256, 512} {
		g.Measurements = append(g.Measurements,
			Measurement{Name: fmt.Sprint(n), Kind: Ours, Floor: one, Take: measureDevices(n)})
	}
	s.Groups = []Group{g}
	return s
}

// comparedExchanges returns the short list of make bench-compare.
func comparedExchanges() []ComparedExchange {
	var list []ComparedExchange
	add := func(x exchange) {
		c := ComparedExchange{Name: fmt.Sprintf("%s, %s, %s", x.tool, sizeNames[x.size], x.path), Unit: "µs",
			Take: x.measureOnce}
		if !x.isLatencyTest() {
			c.Unit, c.Higher = "MB/s", true
		}
		list = append(list, c)
	}
	for _, op := range []string{"SEND", "WRITE", "READ"} {
		add(exchange{path: shortcut, tool: perftestTools[op] + "_lat", size: 64, each: shortcutCosts[64]})
	}
	add(exchange{path: wire, tool: "ib_send_lat", size: 64, each: wireCosts[64]})
	for _, path := range []string{shortcut, wire} {
		for _, size := range sizes[1:] {
			add(exchange{path: path, tool: "ib_write_bw", size: size, each: streamCosts[path][size]})
		}
	}
	return list
}

// guestSections compares Verbena with the kernel's Soft-RoCE, in a guest with both. Times are those of an emulated
// machine.
func guestSections() []Section {
	const slow = 30 // approximate slowdown of the emulated machine
	const kernel = "kernel's rxe"
	latency := Section{Name: "latency", Title: "Latency in the guest", Unit: "µs", Extras: []string{exMean, exP99},
		Note: "perftest's typical time. The kernel's rxe is on the loopback interface, where its packets do not reach UDP.",
		Peer: kernel}
	bandwidth := Section{Name: "bandwidth", Title: "Bandwidth in the guest", Unit: "MB/s (10^6 bytes)",
		Extras: []string{exRate},
		Note:   "More is better.", Peer: kernel}
	for _, op := range []string{"SEND", "WRITE", "READ"} {
		for _, size := range []int{64, 65536} {
			lat, bw := Group{Name: op + " " + sizeNames[size]}, Group{Name: op + " " + sizeNames[size]}
			for _, path := range []string{"", shortcut, wire} {
				m := Measurement{Name: path, Kind: Ours, Peer: kernel}
				if path == "" {
					m = Measurement{Name: kernel, Kind: Peer}
				}
				x := exchange{path: path, tool: perftestTools[op] + "_lat", size: size, each: slow * wireCosts[size]}
				m.Take = x.measure
				lat.Measurements = append(lat.Measurements, m)
				x.tool, x.each = perftestTools[op]+"_bw", slow*streamCosts[path][size]
				m.Take = x.measure
				bw.Measurements = append(bw.Measurements, m)
			}
			latency.Groups, bandwidth.Groups = append(latency.Groups, lat), append(bandwidth.Groups, bw)
		}
	}
	return []Section{latency, bandwidth, connectionSection("Connections in the guest", kernel, "", shortcut, wire)}
}
