// Package rdmanet is net.Conn and net.Listener over RDMA: reliable connections of package verbs, on the devices of a
// kernel, of a Verbena service, or of this process, without cgo.
//
//	l, err := rdmanet.Listen("rdma", "10.0.0.1:7471")       // at one end
//	c, err := l.Accept()
//
//	c, err := rdmanet.Dial("rdma", "10.0.0.1:7471")         // at the other
//
// A [Conn] behaves as a TCP connection does: a stream of bytes, deadlines, half close, io.EOF. Programs that know
// net.Conn alone, such as net/http, need no change beyond [Dialer.DialContext] and [Listener]. Beside the stream a
// peer's memory can be read and written, one-sided: see [Region] and [Remote].
//
// # The stream
//
// Each end has a ring of registered memory, and tells the peer where. Write copies bytes into a ring of the same kind
// at its own end, and posts an RDMA WRITE with immediate data from there into the peer's ring, at once; Read copies out
// of the ring. A Write beyond 64 KB is several WRITEs: the device sends one while the next is copied. On the way of a
// message nothing is allocated, unless it has to sleep.
//
// SENDs into posted buffers would do as well, but a buffer is used up by a message, however short: 64 bytes take as
// much of the receiver's memory as 64 KB. In a ring bytes lie close, a receive has no memory, and is posted again the
// moment it completes. The price is that the peer holds a key to the ring, and to nothing else: what it writes there
// out of order is its own stream.
//
// Small Writes are not coalesced, for they would wait; a program that makes many should use a bufio.Writer.
//
// # Flow control
//
// A sender has room for as many bytes as the peer's ring has, and for as many messages as the peer has receives, less
// those that the peer has not consumed; and for as many bytes as its own ring has, less those that its device has not
// completed. Immediate data tell it how far the peer has read:
//
//	bit 31     FIN: no data follows
//	bit 30     CLOSE: no data follows, and none is read any more
//	bits 29-0  how many bytes of the other direction were consumed, modulo 2^30
//
// Every message with data carries that. When a quarter of the ring, or of the messages, was consumed and no data has
// gone the other way, a WRITE of no bytes does. Such a message needs no credit: at most eight can be in flight before
// the peer must have seen one, as it sends nothing that could be consumed before. Each end posts ten receives more than
// it announces, for those, FIN and CLOSE. So a device never finds a receive queue empty (RNR), and two ends that only
// write do not keep credits from one another.
//
// # Waiting
//
// A connection has no goroutine. Read and Write poll the completion queue themselves, and what is there is handled for
// both. A call that has to wait polls for a moment, then arms the queue and sleeps at its completion channel; if
// another call of the connection already sleeps there, it waits for that one, which hands over when it leaves. So what
// arrives wakes the goroutine that wants it, where a goroutine that dispatches would cost another change of threads
// each way, 25 to 60 us. The moment is short: polling in this process keeps the other end, if that is here too, from a
// processor.
//
// A peer of which nothing has come for Config.KeepAlive is probed by a timer, by a WRITE of no bytes. Its device
// acknowledges that; its program does not notice.
//
// # Deadlines
//
// They are those of net.Conn: in the past they end a call at once, also one that waits; later ones make the connection
// usable again. A caller's memory is never the device's: what was written before a timeout is sent as it was, and what
// arrives after one stays in the ring.
//
// # Set-up
//
// [Dialer] and [Listener] agree over a TCP connection, which is closed when the queue pairs are connected. As a sign of
// life it would be of less worth than probes, which show that the queue pair lives, and not merely the program; and it
// would cost a descriptor and a goroutine. [Client] and [Server] do the same over any net.Conn, and [New] over any
// [Exchange].
//
// A message of set-up has a header: "RNET", version 1 (a byte), its kind (a byte), the length of what follows (two
// bytes). All numbers are big-endian.
//
//	1 hello    verbs.Endpoint (32 bytes), then private data (24 bytes): version (a byte), zero (a byte), messages
//	           (two bytes), length of the ring (four), its address (eight), its key (four), zero (four)
//	2 ready    nothing: the client's queue pair is in RTS
//	3 refusal  the reason, up to 200 bytes of text
//
// The client sends hello; the server's queue pair goes to RTS; the server sends hello; the client's goes to RTS; the
// client sends ready. The server allocates nothing before it has the client's hello.
//
// With Dialer.CM and ListenConfig.CM they agree by the RDMA connection manager instead (package verbs/cm): addresses and
// ports are its own, and no TCP connection is needed. REQ and REP carry "RNET", version 1 (a byte), 1 for hello (a
// byte), and the private data, REJ the same with 3 and the reason. Such a connection lives as long as that of the
// connection manager, and costs a goroutine, but a peer whose program has been killed is known at once. A connection
// that nothing accepts in time, or that is given up, leaves nothing behind at either end.
//
// [Host] is where devices and the connection manager come from, when Config.Device does not name one.
//
// # States
//
//	                 CloseWrite                 Close
//	 +------+ --------------------> +------+ ----------+
//	 | open |                       | shut |           |   +---------+   delivered, CLOSE seen,  +--------+
//	 |      | ----------+           |      | --------> +-> | lingers | ------------------------> | closed |
//	 +------+   Close    \          +------+           |   +---------+   failed, or time over    +--------+
//	    |                 +--------------------------->+
//	    |  a work request or the device fails          |
//	    v                                              |
//	+--------+                 Close                   |
//	| failed | --------------------------------------->+
//	+--------+
//
// Of the peer's direction: FIN makes Read return io.EOF after what has come; CLOSE makes Write, and one-sided
// operations, return EPIPE in addition. Bytes that have come can be read also when the
// connection has failed.
//
// # Errors
//
// Errors of a Conn are *net.OpError, which wrap os.ErrDeadlineExceeded, net.ErrClosed, EPIPE, or a [ConnError]:
// ETIMEDOUT and verbs.RetryExceeded if the peer does not answer, ECONNRESET if it has ended the connection, or does not
// keep to the protocol (EPROTO), ECONNABORTED if this end's device was closed or has gone. No call outlasts that: those
// that wait return when the device goes.
package rdmanet
