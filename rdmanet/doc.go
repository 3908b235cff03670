// Package rdmanet implements net.Conn and net.Listener over RDMA: on reliable connections of package verbs, without
// cgo. The devices belong to the kernel, to a Verbena service, or to this process.
//
//	l, err := rdmanet.Listen("rdma", "10.0.0.1:7471")       // at one end
//	c, err := l.Accept()
//
//	c, err := rdmanet.Dial("rdma", "10.0.0.1:7471")         // at the other
//
// A [Conn] behaves like a TCP connection. A Conn has a stream of bytes, deadlines, half close and io.EOF. Programs that
// use only net.Conn, such as net/http, need no change other than the use of [Dialer.DialContext] and [Listener].
// One-sided operations read and write a peer's memory: see [Region] and [Remote].
//
// # The stream
//
// Each end has a ring of registered memory and sends the address of the ring to the peer. Write copies bytes into a
// local send ring. Write then immediately posts an RDMA WRITE with immediate data into the peer's ring. Read copies
// bytes from the ring. A Write of more than 64 KB is split into several WRITEs. The device sends one WRITE while Write
// copies the next part. Neither Read nor Write allocates memory, unless the call has to sleep.
//
// The alternative would be SENDs into posted buffers. But then each message occupies a whole buffer: 64 bytes occupy as
// much of the receiver's memory as 64 KB. A ring stores the bytes without gaps. The receives for the ring have no
// memory, and are posted again as soon as they complete. The disadvantage is that the peer receives a key to the ring.
// The key gives access to no other memory. With the key the peer can only corrupt its own stream.
//
// Small Writes are not coalesced, because coalescing would delay them. A program with many small Writes should use a
// bufio.Writer.
//
// # Flow control
//
// A sender has three limits: the free bytes of the peer's ring, the peer's free receives, and the free bytes of the
// sender's own ring. Bytes of the peer's ring, and receives, become free when the peer has consumed them. Bytes of the
// sender's own ring become free when the sender's device has completed the WRITE. The immediate data of a message
// report the position up to which its sender has read:
//
//	bit 31     FIN: no data follows
//	bit 30     CLOSE: no data follows, and none is read any more
//	bits 29-0  how many bytes of the other direction were consumed, modulo 2^30
//
// Every message with data carries this credit. A WRITE of no bytes carries the credit in another case: a quarter of the
// ring, or of the messages, has been consumed, and no data were sent in the other direction. A WRITE of no bytes itself
// needs no credit. At most eight such WRITEs can be in flight until the peer has handled one, because the peer must
// consume credits before it can send more data. Each end posts ten more receives than it announces: eight for credits,
// one for FIN and one for CLOSE. Therefore a device never finds an empty receive queue (RNR). Two ends that only write
// do not block each other's credits.
//
// # Waiting
//
// A connection has no goroutine. Read and Write themselves poll the completion queue, and handle the completions of
// both directions. A call that has to wait first spins briefly. The call then arms the queue and sleeps at the
// completion channel. Only one call of a connection sleeps at the channel, on behalf of all waiting calls. When this
// call returns, one of the other calls takes over. A completion therefore wakes the goroutine that needs it. A separate
// dispatching goroutine would add a context switch in each direction, which costs 25 to 60 us. The spin is short. If
// both ends are in one process, a long spin could keep the other end off the processor.
//
// A timer probes a peer that has been silent for Config.KeepAlive. The probe is a WRITE of no bytes. The peer's device
// acknowledges it without the peer's program.
//
// # Deadlines
//
// Deadlines have the semantics of net.Conn. A deadline in the past ends calls at once, including blocked calls. A later
// deadline makes the connection usable again. The device never accesses the caller's memory. Data written before a
// timeout are sent unchanged, and data that arrive after a timeout remain in the ring.
//
// # Set-up
//
// [Dialer] and [Listener] exchange their parameters over a TCP connection. Both close the TCP connection when the queue
// pairs are connected. An open TCP connection would only prove that the program is running. Probes prove that the queue
// pair works. A TCP connection would also cost a descriptor and a goroutine. [Client] and [Server] exchange the
// parameters over any net.Conn. [New] exchanges them over any [Exchange].
//
// A set-up message begins with a header: "RNET", version 1 (a byte), the kind of the message (a byte), the length of
// the body (two bytes). All numbers are big-endian.
//
//	1 hello    verbs.Endpoint (32 bytes), then private data (24 bytes): version (a byte), zero (a byte), messages
//	           (two bytes), length of the ring (four), its address (eight), its key (four), zero (four)
//	2 ready    nothing: the client's queue pair is in RTS
//	3 refusal  the reason, up to 200 bytes of text
//
// The client sends hello. The server moves its queue pair to RTS and sends hello. The client moves its queue pair to
// RTS and sends ready. The server allocates nothing before it has received the client's hello.
//
// With Dialer.CM and ListenConfig.CM, the ends connect over the RDMA connection manager instead of TCP (package
// verbs/cm). The addresses and ports are those of the connection manager. REQ and REP carry "RNET", version 1 (a byte),
// 1 for hello (a byte), and the private data. REJ carries the same header with kind 3, followed by the reason. A
// connection over the manager ends when the connection manager's connection ends. A connection over the manager costs a
// goroutine, but reports a killed peer at once. A connection that is cancelled, or not accepted in time, leaves no
// objects at either end.
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
// FIN ends the stream towards the peer: the peer's Read returns io.EOF after the received data. CLOSE also makes the
// peer's Write and one-sided operations return EPIPE. Received data can be read even when the connection has failed.
//
// # Errors
//
// The errors of a Conn are *net.OpError. The errors wrap os.ErrDeadlineExceeded, net.ErrClosed, EPIPE, or a
// [ConnError]. A ConnError wraps ETIMEDOUT and verbs.RetryExceeded if the peer does not respond. A ConnError wraps
// ECONNRESET if the peer has ended the connection or violated the protocol. After a violation it also wraps EPROTO. A
// ConnError wraps ECONNABORTED if the device of this end was closed or removed. When the device is removed, all blocked
// calls return.
package rdmanet
