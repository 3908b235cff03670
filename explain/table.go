package explain

import (
	"syscall"

	"verbena/driver"
)

// Fault is the end at fault, from the view of the requester of a connection.
type Fault uint8

// The following constants are the ends. FaultSelf is the end that reports the failure.
const (
	FaultUnknown Fault = iota
	FaultSelf
	FaultRequester
	FaultResponder
	FaultNetwork
	FaultDevice
	FaultBoth     // the two ends do not agree
	FaultInjected // a fault rule or a command of a person
	numFaults
)

var faultNames = [numFaults]string{
	FaultUnknown: "unknown", FaultSelf: "this end", FaultRequester: "the requester", FaultResponder: "the responder",
	FaultNetwork: "the network", FaultDevice: "the device", FaultBoth: "both ends", FaultInjected: "injected",
}

func (f Fault) String() string { return faultNames[f] }

// Row is a row of the table of causes.
type Row struct {
	Name string
	// Text is the template of Cause.Why. A word in braces stands for a value; see expand.
	Text string
	// Clause is the clause of the InfiniBand Architecture Specification, volume 1, or a manual page.
	Clause string
	Fault  Fault
	Remedy string
}

// Table is the table of causes. The names are unique.
var Table = []Row{
	// Rules about keys. At the requester they concern its own elements, at the responder the request of the peer.
	{"key", "no memory region or window has the key {key}", "IBA 9.7.4.1.5, 10.6.3; ibv_reg_mr(3)", FaultRequester,
		"use the lkey or rkey of a region that is still registered, and exchange keys after the registration"},
	{"key-ended", "the key {key} ended {ago} earlier: {reason}", "IBA 10.6.5; ibv_dereg_mr(3)", FaultResponder,
		"end all use of a key, at the peer too, before the key ends"},
	{"domain", "the {grant} of key {key} belongs to another protection domain than the QP", "IBA 10.2.3, 10.6.3; ibv_alloc_pd(3)",
		FaultResponder, "register the memory and create the QP in the same protection domain"},
	{"right", "the {grant} of key {key} does not grant {right}", "IBA 9.7.4.1.5, 10.6.3; ibv_reg_mr(3)", FaultResponder,
		"{grant with} {flags}"},
	{"range", "{length} bytes at {addr} exceed the {grant} of key {key}: {limit} bytes at {first}", "IBA 9.7.4.1.5, 10.6.3; ibv_reg_mr(3)",
		FaultRequester, "keep address and length within the registered memory"},
	{"window", "the memory window of key {key} is bound to another QP", "IBA 10.6.7.2; ibv_bind_mw(3)", FaultRequester,
		"use a type 2 window only on the QP that bound it"},
	{"revoked", "the key {key} is being invalidated or deregistered", "IBA 10.6.5; ibv_dereg_mr(3)", FaultResponder,
		"end all use of a region before deregistration"},
	{"memory", "the memory of the region cannot be accessed", "IBA 9.9.3; ibv_reg_mr(3)", FaultResponder,
		"keep registered memory mapped, with the protection that it had, until deregistration"},
	{"memory-ended", "process {owner} ended, and its memory with it", "IBA 9.9.3", FaultResponder,
		"see why the process ended"},
	{"memory-executed", "process {owner} has executed another program, and its registrations ended with its memory",
		"IBA 9.9.3; execve(2)", FaultResponder, "execute another program only in a child, or before the registration"},
	// Rules about work requests.
	{"opcode", "this type of QP ({type}) does not support the operation", "IBA 10.8.2; ibv_post_send(3)", FaultSelf,
		"use an operation that ibv_post_send(3) lists for the type of the QP"},
	{"inline", "a READ or an atomic operation cannot be inline", "ibv_post_send(3)", FaultSelf, "remove IBV_SEND_INLINE"},
	{"inline-length", "{length} bytes inline exceed max_inline_data {limit}", "ibv_create_qp(3)", FaultSelf,
		"create the QP with a larger max_inline_data, or send without IBV_SEND_INLINE"},
	{"sges", "{length} elements exceed the limit {limit} of the queue", "ibv_create_qp(3)", FaultSelf,
		"create the queue with a larger max_send_sge or max_recv_sge"},
	{"message-length", "{length} bytes exceed the port's max_msg_sz {limit}", "IBA 9.7.4.1.6; ibv_query_port(3)",
		FaultRequester,
		"split the message"},
	{"read-depth", "max_rd_atomic of the QP is 0", "IBA 11.2.5.2; ibv_modify_qp(3)", FaultSelf,
		"set max_rd_atomic to at least 1 in the transition to RTS"},
	{"address", "the address handle has no path from this port", "ibv_create_ah(3)", FaultSelf,
		"create the address handle with a GID index of the same address family as the destination"},
	{"datagram", "{length} bytes exceed the path MTU {limit} of a datagram", "IBA 9.8.3; ibv_post_send(3)", FaultSelf,
		"send at most one path MTU in a datagram"},
	{"atomic-length", "an atomic operation has 8 bytes, not {length}", "IBA 9.4.5; ibv_post_send(3)", FaultRequester,
		"pass one element of 8 bytes"},
	{"flush-type", "the placement or level of the FLUSH is invalid, or not granted", "IBA A19.4", FaultRequester,
		"use a placement that the region and the QP grant"},
	// Rules that only a responder checks.
	{"sequence", "the packet does not continue the message in progress", "IBA 9.7.4.1.2", FaultRequester,
		"reset both QPs together; a QP that is connected again starts with the PSN that its peer expects"},
	{"qp-right", "the responder's QP does not grant {right}", "IBA 9.7.4.1.3, 10.7.2; ibv_modify_qp(3)", FaultResponder,
		"set qp_access_flags of the QP to include {flags}"},
	{"alignment", "the address {addr} of an atomic operation is not a multiple of 8", "IBA 9.7.4.1.3; ibv_post_send(3)", FaultRequester,
		"align the remote address to 8 bytes"},
	{"responder-depth", "more READs and atomics are outstanding than the responder's max_dest_rd_atomic {limit}",
		"IBA 9.7.4.1.4; ibv_modify_qp(3)", FaultBoth, "set max_rd_atomic to at most the peer's max_dest_rd_atomic"},
	{"mtu-mismatch", "a packet of {length} bytes does not fit the responder's path MTU {limit}", "IBA 9.7.4.1.6; ibv_modify_qp(3)",
		FaultBoth, "set the same path_mtu at both ends"},
	{"write-length", "an RDMA WRITE has other than the {limit} bytes that it announced", "IBA 9.7.4.1.6", FaultRequester,
		"reset both QPs together"},
	{"receive-too-short", "receive too short: {limit} of {length} bytes", "IBA 9.7.4.1.6, 9.9.3; ibv_post_recv(3)",
		FaultResponder,
		"post receives at least as long as the longest message"},
	{"no-receive", "no receive was posted; {naks} since {since}", "IBA 9.7.5.2.8; ibv_post_recv(3)", FaultResponder,
		"post receives before the peer sends, or set rnr_retry to 7 (no limit)"},
	{"no-receive-yet", "no receive was posted; {naks} since {since}", "IBA 9.7.5.2.8; ibv_post_recv(3)", FaultResponder,
		"post receives before the peer sends; until then, the peer sends the request again"},
	{"rnr-injected", "a fault rule makes the receiver seem not ready", "`verbena fault add --rnr`", FaultInjected,
		"`verbena fault show` lists the rule, and `verbena fault clear` removes it"},
	{"srq", "no shared receive queue of the target's XRC domain has the number", "IBA A14; ibv_create_srq_ex(3)", FaultRequester,
		"send the number of an XRC SRQ of the same domain"},
	{"invalidate", "the key of the SEND with Invalidate cannot be invalidated", "IBA 9.9.6.3; ibv_post_send(3)",
		FaultRequester,
		"invalidate only a bound type 2 window, or a region registered by a work request, of this QP"},
	// No answer.
	{"peer-in-error", "the peer's QP {peerqp} has been in {peerstate} since {ago} earlier ({peerwhy})", "IBA 9.9.2.1.1, 10.3.1; ibv_modify_qp(3)",
		FaultResponder, "find the reason at the peer: `verbena explain --qp {peerqp}`"},
	{"peer-closed", "the peer's QP {peerqp} was destroyed {ago} earlier", "IBA 10.2.4.5; ibv_destroy_qp(3)",
		FaultResponder,
		"tell the peer before a QP is destroyed, for example by a disconnect"},
	{"peer-ended", "the peer's program (process {peerpid}) ended {ago} earlier, and with it QP {peerqp}", "IBA 9.7.6.1.3", FaultResponder,
		"see why the process ended"},
	{"peer-not-ready", "the peer's QP {peerqp} is in {peerstate}", "IBA 10.3.1; ibv_modify_qp(3)", FaultResponder,
		"send only after the peer has moved its QP to RTR"},
	{"peer-reset", "the peer's program moved its QP {peerqp} to {peerstate} {ago} earlier", "IBA 10.3.1; ibv_modify_qp(3)",
		FaultResponder, "end the connection at both ends before a QP is reset"},
	{"peer-other", "the peer's QP {peerqp} is connected to another QP", "IBA 9.6.1.1; ibv_modify_qp(3)", FaultBoth,
		"exchange QP numbers and GIDs anew, and set dest_qp_num and ah_attr of both ends"},
	{"peer-service", "the peer's QP {peerqp} has another type ({peertype})", "IBA 9.6.1.1; ibv_create_qp(3)",
		FaultRequester,
		"create both QPs with the same type"},
	{"peer-stalled", "the memory of the peer's program does not respond", "IBA 9.7.6.1.3", FaultResponder,
		"see what stops the program: a debugger, SIGSTOP, or a page fault that is not resolved"},
	{"no-qp", "{peer} has no QP {peerqp}", "IBA 9.6.1.1; ibv_modify_qp(3)", FaultRequester,
		"set dest_qp_num to the number of the peer's QP, and keep the QP while the peer sends"},
	{"no-qp-more", "{peer} has no QP {peerqp} any more; the QP has acknowledged packets before", "IBA 10.2.4.5; ibv_destroy_qp(3)",
		FaultResponder, "tell the peer before a QP is destroyed, for example by a disconnect"},
	{"no-own-qp", "no answer from {peer}, where this user has no QP {peerqp}",
		"IBA 9.6.1.1, 9.7.6.1.3; ibv_modify_qp(3)", FaultUnknown,
		"set dest_qp_num to the number of the peer's QP; if it is another user's, look at its program"},
	{"too-long", "packets of {length} bytes do not fit the MTU {mtu} of the interface", "IBA A17.4; ibv_query_port(3)", FaultRequester,
		"set path_mtu to at most the port's active_mtu"},
	{"no-route", "there is no route to {peer}", "IBA A17.4; ip-route(8)", FaultNetwork, "add a route to the destination"},
	{"not-sent", "the network refused the packets: {err}", "IBA A17.4; sendmsg(2)", FaultNetwork,
		"see the error of the network"},
	{"port-down", "the port of {device} has been down since {since}", "IBA 11.6.3; `verbena link show`", FaultNetwork,
		"take the link up: `verbena link set {device} up`"},
	{"peer-port-down", "the port of the peer's device {device} has been down since {since}", "IBA 11.6.3; `verbena link show`",
		FaultNetwork, "take the link up: `verbena link set {device} up`"},
	{"port-down-interface", "the port of {device} has been down since {since}, because its interface {port} is down or has no carrier",
		"IBA 11.6.3; ip-link(8)", FaultNetwork, "take the interface up: `ip link set {port} up`, and its peer or cable"},
	{"peer-port-down-interface", "the port of the peer's device {device} has been down since {since}, because its interface {port} is " +
		"down or has no carrier", "IBA 11.6.3; ip-link(8)", FaultNetwork,
		"take the interface up: `ip link set {port} up`, and its peer or cable"},
	{"port-was-down", "the port of {device} was down from {since} on, because {port} was down", "IBA 11.6.3; `verbena link show`",
		FaultNetwork, "take the link up: `verbena link set {device} up`, or `ip link set {port} up`"},
	{"address-gone", "the device {device} has lost the address {local} of the connection", "IBA 11.6.3; ip-address(8)",
		FaultNetwork, "add the address again, or connect with another GID; see IBV_EVENT_GID_CHANGE"},
	{"packets-lost", "packets lost by fault rules of {device}: {count}", "`verbena fault show`", FaultInjected,
		"`verbena fault show` lists the rules, and `verbena fault clear` removes them"},
	{"packets-damaged", "packets damaged by fault rules of {device}, which the receiver drops: {count}", "IBA 9.8.1; `verbena fault show`",
		FaultInjected, "`verbena fault show` lists the rules, and `verbena fault clear` removes them"},
	{"packets-lost-by-link", "packets lost by the loss rate of link {device}: {count}", "`verbena link show`",
		FaultInjected,
		"lower the rate: `verbena link set {device} --loss 0`"},
	{"link-overflow", "packets lost because the queue of link {device} was full: {count}", "`verbena link show`", FaultInjected,
		"send less at once, or raise the rate or the queue of the link: `verbena link set {device}`"},
	{"packets-delayed", "packets were delayed by {delay} at {device}, and all transmissions together waited {wait} (local ACK timeout {timeout})",
		"IBA 9.7.6.1.3; ibv_modify_qp(3)", FaultInjected,
		"set timeout of the QP to more than the delay; `verbena fault show` and `verbena link show` list the delays"},
	{"psn-mismatch", "the peer answered for PSN {number}, which this QP has never sent ({times})", "IBA 9.7.1, 9.7.5.1.2; ibv_modify_qp(3)",
		FaultBoth, "set rq_psn of each end to sq_psn of the other; when one end connects again, connect both"},
	{"peer-device", "the peer's device {device} is {reason} since {since}", "ib_device(9): IB_EVENT_DEVICE_FATAL",
		FaultDevice,
		"`verbena dev show` shows the device, and `verbena dev reset` or `dev plug` recovers it"},
	{"peer-device-was", "the peer's device {device} was {reason} {ago} earlier, and its QPs ended", "ib_device(9): IB_EVENT_DEVICE_FATAL",
		FaultDevice, "connect again: the peer opens the recovered device and makes new QPs"},
	{"peer-reconnected", "the peer's QP {peerqp} was reset and connected again {ago} earlier, and this QP was not", "IBA 10.3.1, 12.9; ibv_modify_qp(3)",
		FaultBoth, "connect both ends anew"},
	{"no-answer", "no answer from {peer}", "IBA 9.7.6.1.3", FaultUnknown,
		"look at the peer: its host, its QP {peerqp}, its firewall for UDP port 4791"},
	{"no-answer-more", "no answer from {peer} any more, which has acknowledged packets before", "IBA 9.7.6.1.3", FaultUnknown,
		"look at the peer: its program, its QP {peerqp}, its host, the network"},
	{"no-answer-here", "the peer's QP {peerqp} is in {peerstate}; the reason is unknown", "IBA 9.7.6.1.3", FaultUnknown,
		"a trace shows the packets: `verbena qp trace {peerqp}`"},
	{"peer-refused", "{peer} answered with a NAK; the reason at the peer is unknown", "IBA 9.7.5.2, 9.9.2.1", FaultUnknown,
		"look at the peer's completions and events: keys, rights, ranges and lengths of the request"},
	{"bad-response", "the response does not fit the request", "IBA 9.9.2.1", FaultResponder,
		"see `verbena capture` for the packets"},
	// States.
	{"modified", "its program modified the QP to ERR {ago} earlier", "IBA 10.3.1; ibv_modify_qp(3)", FaultSelf,
		"none, if the program ends the connection"},
	{"device-error", "the device {device} was in error since {since} ({reason})",
		"IBA 11.6.3; ibv_get_async_event(3)", FaultDevice,
		"handle IBV_EVENT_DEVICE_FATAL: close the device, and open the recovered one"},
	{"context-ended", "the device was removed, and its context ended", "ibv_get_async_event(3)", FaultDevice,
		"handle IBV_EVENT_DEVICE_FATAL: close the device, and open the recovered one"},
	{"cq-overrun", "the completion queue has {limit} entries, and all were in use", "IBA 11.6.3.1; ibv_create_cq(3)", FaultSelf,
		"create the CQ with room for all outstanding work requests, or poll more often"},
	{"cq-gone", "the memory of the completion queue is gone", "ibv_create_cq(3)", FaultSelf,
		"keep the CQ while QPs use it"},
	{"queue-memory", "the program unmapped the memory of its queues", "ibv_create_qp(3)", FaultSelf,
		"do not unmap or truncate the memory that libibverbs maps"},
	{"failed-before", "the QP had failed before; the reason is unknown", "IBA 10.3.1", FaultUnknown,
		"see the first failed completion"},
	{"unknown", "the reason is unknown", "ibv_poll_cq(3)", FaultUnknown, "a trace shows more: `verbena qp trace {qp}`"},
	// Dropped packets.
	{"dropped-malformed", "the lengths or headers do not fit the opcode", "IBA 9.6", FaultRequester,
		"see `verbena capture` for the packets"},
	{"dropped-type", "the QP has another type ({type})", "IBA 9.6.1.1", FaultBoth, "create both QPs with the same type"},
	{"dropped-pkey", "the partition key is wrong", "IBA 9.6.1.1.3", FaultRequester, "use the same partition at both ends"},
	{"dropped-state", "the QP is in {state}", "IBA 10.3.1", FaultResponder, "move the QP to RTR before the peer sends"},
	{"dropped-source", "the packet is not from the peer of the connection", "IBA 9.6.1.1", FaultRequester,
		"exchange QP numbers and GIDs anew, and set dest_qp_num and ah_attr of both ends"},
	{"dropped-qkey", "the Q_Key is wrong", "IBA 9.6.1.1.4, 10.2.5; ibv_modify_qp(3)", FaultRequester,
		"use the Q_Key of the receiving QP as remote_qkey"},
	{"dropped-port", "the port of {device} is down", "IBA 11.6.3", FaultNetwork,
		"take the link up: `verbena link set {device} up`"},
	{"dropped-stalled", "the memory of the program does not respond", "IBA 9.7.6.1.3", FaultResponder,
		"see what stops the program: a debugger, SIGSTOP, or a page fault that is not resolved"},
	{"datagram-no-receive", "no receive was posted", "IBA 9.8.3; ibv_post_recv(3)", FaultResponder,
		"post receives before the peer sends"},
	{"datagram-no-qp", "{device} has no QP {number}", "IBA 9.6.1.1; ibv_post_send(3)", FaultRequester,
		"set remote_qpn to the number of a UD QP of the destination"},
	{"datagram-short", "receive too short: {limit} of {length} bytes, with 40 bytes for the GRH", "IBA 9.8.3; ibv_post_recv(3)",
		FaultResponder, "post receives with 40 bytes more than the longest datagram"},
	{"packets-missing", "packets before it are missing", "IBA 9.8.2", FaultNetwork,
		"use a reliable connection, or accept the loss"},
	// Devices.
	{"device-lost", "it has been {reason} since {since}", "ibv_get_async_event(3)", FaultDevice,
		"handle IBV_EVENT_DEVICE_FATAL: close the device, and open the recovered one"},
	{"service-stopped", "the service was stopped at {since}, and its devices with it", "`verbena stop`", FaultInjected,
		"start the service, and then the program: a program does not connect to a new service"},
	// Rejected connections.
	{"no-listener", "{peer} has no listener on port {port}",
		"IBA 12.6.7.2, reason 8, 12.11.2.1; rdma_listen(3)", FaultRequester,
		"start the server before the client, and use its port and address"},
	{"rejected-program", "process {peerpid} rejected it", "IBA 12.6.7.2, reason 28; rdma_reject(3)", FaultResponder,
		"see the private data of the rejection, and the log of that program"},
	{"rejected-accept", "rdma_accept of process {peerpid} failed",
		"IBA 12.6.7.2, reason 28; rdma_accept(3)", FaultResponder, "see the error of rdma_accept at that program"},
	{"rejected-destroyed", "process {peerpid} destroyed the ID of the request",
		"IBA 12.6.7.2, reason 28; rdma_destroy_id(3)", FaultResponder,
		"accept or reject a request before its ID is destroyed"},
	{"rejected-ended", "the event channel of process {peerpid} was closed, as at the end of a process",
		"IBA 12.6.7.2, reason 28; rdma_create_event_channel(3)", FaultResponder,
		"see why the process ended, or keep the event channel open"},
	{"rejected-removed", "the device of process {peerpid} was removed",
		"IBA 12.6.7.2, reason 28; rdma_get_cm_event(3)", FaultDevice, "connect again when the device is back"},
	{"rejected-backlog", "process {peerpid} has not accepted earlier requests, and its backlog of {limit} is full",
		"IBA 12.6.7.2, reason 28; rdma_listen(3)", FaultResponder,
		"accept requests faster, or pass a larger backlog to rdma_listen"},
	{"rejected-address", "process {peerpid} listens on port {port}, but not at {peer}",
		"IBA 12.6.7.2, reason 28; rdma_bind_addr(3)", FaultBoth, "listen at the address of the device, or at any address"},
	{"rejected-consumer", "the connection manager of {peer} answered \"consumer reject\"",
		"IBA 12.6.7.2, reason 28; rdma_reject(3)", FaultResponder, "see the private data of the rejection, and the log of that program"},
	{"rejected", "reason {reason}", "IBA 12.6.7.2", FaultUnknown, "see the reason in the specification"},
	{"address-error", "{err}", "rdma_resolve_addr(3)", FaultSelf,
		"use an address that a device of this service can reach"},
	{"unreachable", "no answer from {peer} to the connection request", "IBA 12.9.8; rdma_connect(3)", FaultUnknown,
		"look at the peer: its host, its listener, its firewall for UDP port 4791"},
	// Refused calls.
	{"call-invalid", "{err}", "{man}", FaultSelf, "correct the argument that the message names"},
	{"call-memory", "{err}", "{man}; getrlimit(2)", FaultSelf,
		"raise the limit that the message names: `ulimit -l`, or the limits of `verbena res show --users`"},
	{"call-unsupported", "{err}", "{man}; ibv_query_device_ex(3)", FaultSelf, "ask for the device's capabilities first"},
	{"call-permission", "{err}", "{man}", FaultSelf, "see the rights of the caller"},
	{"call-busy", "{err}", "{man}", FaultSelf, "destroy the objects that use it first"},
	{"call-gone", "{err}", "{man}; ibv_get_async_event(3)", FaultDevice, "close the device, and open the recovered one"},
	{"call-fault", "{err}", "{man}", FaultSelf, "pass memory that is mapped with the rights that the access flags need"},
	{"call-unreachable", "{err}", "{man}; ip-route(8)", FaultSelf,
		"use a GID index with an address of the destination's family, and a destination that this device can reach"},
	{"call-injected", "{err}", "`verbena fault add --verb`", FaultInjected, "`verbena fault show` lists the rule"},
	{"call-failed", "{err}", "{man}", FaultSelf, "see the message"},
}

// rows are the rows by name.
var rows = func() map[string]*Row {
	m := make(map[string]*Row, len(Table))
	for i := range Table {
		m[Table[i].Name] = &Table[i]
	}
	return m
}()

// ruleRows are the rows of the rules.
var ruleRows = [driver.NumRules]string{
	driver.RuleUnknown: "unknown", driver.RuleKey: "key", driver.RuleDomain: "domain", driver.RuleRight: "right",
	driver.RuleRange: "range", driver.RuleWindowQP: "window", driver.RuleRevoked: "revoked", driver.RuleMemory: "memory",
	driver.RuleOpcode: "opcode", driver.RuleInline: "inline", driver.RuleInlineLength: "inline-length",
	driver.RuleSGEs:          "sges",
	driver.RuleMessageLength: "message-length", driver.RuleReadDepth: "read-depth", driver.RuleAddress: "address",
	driver.RuleDatagram: "datagram", driver.RuleAtomicLength: "atomic-length", driver.RuleFlushType: "flush-type",
	driver.RuleSequence: "sequence", driver.RuleQPRight: "qp-right", driver.RuleAlignment: "alignment",
	driver.RuleRespDepth: "responder-depth", driver.RulePacketLength: "mtu-mismatch",
	driver.RuleWriteLength:   "write-length",
	driver.RuleReceiveLength: "receive-too-short", driver.RuleNoReceive: "no-receive", driver.RuleInjected: "rnr-injected",
	driver.RuleSRQ: "srq", driver.RuleInvalidate: "invalidate", driver.RulePSN: "packets-missing",
}

// dropRows are the rows of dropped packets. A packet to no QP belongs to no user.
var dropRows = [driver.NumDropReasons]string{
	driver.DropMalformed: "dropped-malformed", driver.DropNoQP: "no-qp", driver.DropService: "dropped-type",
	driver.DropPKey: "dropped-pkey", driver.DropState: "dropped-state", driver.DropSource: "dropped-source",
	driver.DropQKey: "dropped-qkey", driver.DropPort: "dropped-port", driver.DropStalled: "dropped-stalled",
}

// callRows are the rows of refused calls by errno; others are "call-failed".
var callRows = map[syscall.Errno]string{
	syscall.EINVAL: "call-invalid", syscall.ENOENT: "call-invalid", syscall.EBADF: "call-invalid",
	syscall.ENOMEM: "call-memory",
	syscall.EMFILE: "call-memory", syscall.EAGAIN: "call-memory", syscall.EOPNOTSUPP: "call-unsupported",
	syscall.ENOSYS: "call-unsupported", syscall.EPERM: "call-permission",
	syscall.EACCES: "call-permission", syscall.EBUSY: "call-busy", syscall.EIO: "call-gone", syscall.ENODEV: "call-gone",
	syscall.EFAULT: "call-fault", syscall.ENETUNREACH: "call-unreachable", syscall.EHOSTUNREACH: "call-unreachable",
}
