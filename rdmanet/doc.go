// Package rdmanet implements net.Conn and net.Listener over RDMA: on reliable connections of package verbs, without
// cgo. The devices are those of the kernel, of a Verbena service, or of this process.
//
//	l, err := rdmanet.Listen("rdma", "10.0.0.1:7471")       // at one end
//	c, err := l.Accept()
//
//	c, err := rdmanet.Dial("rdma", "10.0.0.1:7471")         // at the other
//
// A [Conn] behaves as a TCP connection: it has a stream of bytes, deadlines, half close and io.EOF. Programs that use
// only net.Conn, such as net/http, need no change apart from [Dialer.DialContext] and [Listener]. One-sided operations
// read and write a peer's memory: see [Region] and [Remote].
//
// # The stream
//
// Each end has a ring of registered memory and sends its address to the peer. Write copies bytes into a local send
// ring, and at once posts an RDMA WRITE with immediate data into the peer's ring. Read copies from the ring. A Write of
// more than 64 KB is split into several WRITEs: the device sends one while Write copies the next. Neither Read nor
// Write allocates memory, unless it has to sleep.
//
// The alternative is SENDs into posted buffers. But each message uses up a whole buffer: 64 bytes take as much of the
// receiver's memory as 64 KB. A ring holds the bytes without gaps. Its receives have no memory, and are posted again as
// soon as they complete. The price is that the peer holds a key to the ring, and to nothing else. With the key it can
// only corrupt its own stream.
//
// Small Writes are not coalesced, because that would delay them. A program with many small Writes should use a
// bufio.Writer.
//
// # Flow control
//
// A sender has three limits: the free bytes of the peer's ring, the peer's free receives, and the free bytes of its own
// ring. Bytes of the peer's ring and receives are free again once the peer has consumed them. Bytes of its own ring are
// free again once its device has completed the WRITE. Immediate data report the position up to which the peer has read:
//
//	bit 31     FIN: no data follows
//	bit 30     CLOSE: no data follows, and none is read any more
//	bits 29-0  how many bytes of the other direction were consumed, modulo 2^30
//
// Every message with data carries this credit. A WRITE of no bytes carries it when a quarter of the ring, or of the
// messages, was consumed and no data were sent in the other direction. Such a message needs no credit itself. At most
// eight of them can be in flight until the peer handles one, because the peer must consume credits before it can send
// more data. Each end posts ten more receives than it announces: eight for credits, one for FIN and one for CLOSE.
// Therefore a device never finds an empty receive queue (RNR), and two ends that only write do not block each other's
// credits.
//
// # Waiting
//
// A connection has no goroutine. Read and Write poll the completion queue themselves, and handle the completions of
// both directions. A call that has to wait first spins briefly. Then it arms the queue and sleeps at the completion
// channel. Only one call of a connection sleeps there; the others wait for it, and it passes the channel to one of them
// when it returns. So a completion wakes the goroutine that needs it. A separate dispatching goroutine would add a
// context switch in each direction, 25 to 60 us. The spin is short, because it could keep the other end off the
// processor if both ends are in one process.
//
// A timer probes a peer that was silent for Config.KeepAlive. The probe is a WRITE of no bytes, which the peer's device
// acknowledges without its program.
//
// # Deadlines
//
// Deadlines are those of net.Conn. A deadline in the past ends calls at once, also blocked ones. A later deadline makes
// the connection usable again. The device never accesses the caller's memory: data written before a timeout are sent
// unchanged, and data that arrive after it stay in the ring.
//
// # Set-up
//
// [Dialer] and [Listener] exchange their parameters over a TCP connection, and close it when the queue pairs are
// connected. An open TCP connection would show only that the program is alive, while probes show that the queue pair is
// alive. It would also cost a descriptor and a goroutine. [Client] and [Server] do the exchange over any net.Conn, and
// [New] over any [Exchange].
//
// A set-up message has a header: "RNET", version 1 (a byte), its kind (a byte), the length of the body (two bytes). All
// numbers are big-endian.
//
//	1 hello    verbs.Endpoint (32 bytes), then private data (24 bytes): version (a byte), zero (a byte), messages
//	           (two bytes), length of the ring (four), its address (eight), its key (four), zero (four)
//	2 ready    nothing: the client's queue pair is in RTS
//	3 refusal  the reason, up to 200 bytes of text
//
// The client sends hello. The server moves its queue pair to RTS and sends hello. The client moves its queue pair to
// RTS and sends ready. The server allocates nothing before it has received the client's hello.
//
// With Dialer.CM and ListenConfig.CM, the ends connect over the RDMA connection manager instead (package verbs/cm).
// They use its addresses and ports, and no TCP connection. REQ and REP carry "RNET", version 1 (a byte), 1 for hello (a
// byte), and the private data. REJ carries the same header with kind 3, then the reason. Such a connection ends when
// the connection of the connection manager ends. It costs a goroutine, but it reports a killed peer at once. A
// connection that is cancelled, or not accepted in time, leaves no objects at either end.
//
// [Host] provides the devices and the connection manager if Config.Device is nil.
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
// In the peer's direction, FIN makes Read return io.EOF after the received data. CLOSE also makes Write and one-sided
// operations return EPIPE. Received data can be read even when the connection has failed.
//
// # Errors
//
// Errors of a Conn are *net.OpError. They wrap os.ErrDeadlineExceeded, net.ErrClosed, EPIPE, or a [ConnError]. A
// ConnError wraps ETIMEDOUT and verbs.RetryExceeded if the peer does not answer. It wraps ECONNRESET if the peer has
// ended the connection or violates the protocol (then also EPROTO). It wraps ECONNABORTED if the device of this end was
// closed or has gone. When the device goes, all blocked calls return.
package rdmanet
