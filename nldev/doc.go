// Package nldev answers NETLINK_RDMA messages of the family RDMA_NL_NLDEV as Linux does in
// drivers/infiniband/core/{nldev,netlink}.c and net/netlink/af_netlink.c: the interface of rdma(8), of libibverbs'
// device discovery and of librdmacm. It opens no socket, starts no goroutine and makes no system call; a supervisor
// traps the netlink socket of a program and passes each datagram through [Answer].
//
//	program --- request datagram ---> Answer ---> Source   devices, ports, resources, counters
//	        <--- answer datagrams ---        ---> Admin    add and delete a link
//
// # Requests
//
// A datagram holds any number of messages, which are answered in order. A message without NLM_F_REQUEST, or of a
// control type, is acknowledged if it asks for that and is otherwise ignored. The remainder of a datagram after a
// message whose length is below 16 bytes or beyond the end is dropped without an answer, as rdma_nl_rcv_skb does.
// Another family than NLDEV, or an unknown command, is EINVAL. Attributes are checked against the kernel's policy
// table; a command that changes something checks them strictly (NL_VALIDATE_STRICT), the others liberally.
//
// # Answers
//
// A message with NLM_F_ROOT or NLM_F_MATCH is a dump. Its messages carry NLM_F_MULTI, share datagrams as far as they
// fit, and end with NLMSG_DONE in a datagram of its own. An error of a dump, for instance the missing index of a
// device, is the payload of NLMSG_DONE, a negative errno, and not an NLMSG_ERROR. A dump is never acknowledged
// besides. Of several dumps in one request, only the first one that has anything to report is answered; the others
// are EBUSY.
//
// Any other message is answered by at most one message without NLM_F_MULTI, then by an NLMSG_ERROR if it failed or
// if it asked for an acknowledgement (error 0). An unknown device index and an invalid port are EINVAL, an unknown
// resource is ENOENT, a missing capability is EPERM.
//
// A datagram is at most [DefaultDatagram] bytes, what the kernel allocates as long as it does not know the receive
// buffer of the program: rdma(8) reads into 4096 bytes. [Socket] raises that for programs with larger buffers.
//
// # ABI
//
// Numbers are those of Linux 6.18. An attribute newer than the program is ignored by it: libmnl and libnl skip
// types they do not know. RDMA_NLDEV_ATTR_CHARDEV has the layout of huge_encode_dev. All integers have the byte
// order of the host.
//
// # Differences from Linux
//
// GET and RES_GET dumps pack several devices into a datagram, where the kernel sends each in its own. An entry of a
// dump that exceeds a datagram of its own ends the dump with EMSGSIZE; the kernel repeats the same empty message.
// There is one network namespace, in shared mode. Names, the namespace and the moderation of a device cannot be
// changed and counters cannot be bound to QPs (EOPNOTSUPP). There are no extended acknowledgements and no
// notifications, so SYS_GET reports that monitoring is off. Counters are reported by name, not in a driver's order.
package nldev
