// Package nldev answers NETLINK_RDMA messages of the family RDMA_NL_NLDEV in the same way as Linux does in
// drivers/infiniband/core/{nldev,netlink}.c and net/netlink/af_netlink.c. rdma(8), libibverbs' device discovery and
// librdmacm use this interface. The package opens no socket, starts no goroutine and makes no system call; a
// supervisor traps the netlink socket of a program and passes each datagram through [Socket.Answer].
//
//	program --- request datagram ---> Answer ---> Source   devices, ports, resources, counters
//	        <--- answer datagrams ---        ---> Admin    add and delete a link
//
// # Requests
//
// A datagram holds any number of messages, which are answered in order. A message without NLM_F_REQUEST, or of a
// control type, is acknowledged if it requests an acknowledgement. Otherwise it is ignored. If the length of a
// message is below 16 bytes or beyond the end of the datagram, the rest of the datagram is dropped without an
// answer, as in rdma_nl_rcv_skb. Another family than NLDEV, or an unknown command, returns EINVAL. Attributes are
// checked against the kernel's policy table. Commands that change the configuration check them strictly
// (NL_VALIDATE_STRICT), and the other commands liberally.
//
// # Answers
//
// A message with NLM_F_ROOT or NLM_F_MATCH is a dump. The messages that answer a dump carry NLM_F_MULTI, share
// datagrams as far as they fit, and end with NLMSG_DONE in a datagram of its own. An error of a dump, such as the
// missing index of a device, is a negative errno in the payload of NLMSG_DONE, and not an NLMSG_ERROR. A dump has no
// other acknowledgement. If a request contains several dumps, only the first dump with results is answered. The other
// dumps return EBUSY.
//
// Any other message is answered by at most one message without NLM_F_MULTI. If the message failed or requested an
// acknowledgement (error 0), an NLMSG_ERROR follows. An unknown device index and an invalid port return EINVAL, an
// unknown resource returns ENOENT, and a missing capability returns EPERM.
//
// A datagram has at most [defaultDatagramSize] bytes, the size that the kernel allocates if it does not know the
// receive buffer of the program. rdma(8) reads into 4096 bytes. [Socket] raises that limit for programs with larger
// buffers.
//
// # ABI
//
// The numbers are those of Linux 6.18. A program ignores an attribute that is newer than the program, because
// libmnl and libnl skip unknown types. RDMA_NLDEV_ATTR_CHARDEV has the layout of huge_encode_dev. All integers have
// the byte order of the host.
//
// # Differences from Linux
//
// GET and RES_GET dumps pack several devices into a datagram. The kernel sends each device in a separate datagram.
// An entry of a dump that exceeds a datagram ends the dump with EMSGSIZE. The kernel repeats the same empty
// message. There is one network namespace, in shared mode. Names, the namespace and the moderation of a device
// cannot be changed, and counters cannot be bound to QPs (EOPNOTSUPP). There are no extended acknowledgements and
// no notifications, so SYS_GET reports that monitoring is off. Counters are reported by name, not in a driver's
// order.
package nldev
