// Package rdmacm implements the connection manager. The package resolves addresses to devices, connects queue
// pairs, and finds datagram services, with the protocol of IBA chapter 12 and the addressing of annex A11
// (drivers/infiniband/core/{cm,cma}.c).
//
// A [Manager] is a client of an ib.Core. The Manager owns the general services queue pair of every device. An [ID] is
// one side of a connection, a listener, or a datagram service:
//
//	resolve:  NewID - ResolveAddr -> AddrResolved - ResolveRoute -> RouteResolved - Connect -> ...
//	connect:  ... -> ConnectResponse - Accept; the owner brings the queue pair up before; or Rejected, or Unreachable
//	listen:   NewID - Bind - Listen -> ConnectRequest with a new ID - Accept -> Established
//	end:      Disconnect -> Disconnected -> TimewaitExit - Destroy
//
// The manager reports events, one at a time, to the function of an ID. Consumers in this process can instead use
// [Conn] and [Listener], which connect RC queue pairs. Their calls take a context and wait.
//
// Messages are sent and received like other packets. Captures therefore show them, and fault rules apply to them.
// Package conn implements the rules of the protocol as a value. Timers use Config.Clock. Data from peers are not
// trusted. A connection is bound to the address with which it began, communication IDs are random, and the state
// that unknown peers can make the manager keep is limited (Config.Backlog).
package rdmacm
