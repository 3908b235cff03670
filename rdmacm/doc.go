// Package rdmacm is the connection manager: it resolves addresses to devices, connects queue pairs, and finds datagram
// services, by the protocol of IBA chapter 12 with the addressing of annex A11 (drivers/infiniband/core/{cm,cma}.c).
//
// A [Manager] is a client of an ib.Core. It owns the general services queue pair of every device; [ID]s are its users'
// ends of connections, of listeners and of datagram services:
//
//	resolve:  NewID - ResolveAddr -> AddrResolved - ResolveRoute -> RouteResolved - Connect -> ...
//	connect:  ... -> ConnectResponse - Accept; the owner brings the queue pair up before; or Rejected, or Unreachable
//	listen:   NewID - Bind - Listen -> ConnectRequest with a new ID - Accept -> Established
//	end:      Disconnect -> Disconnected -> TimewaitExit - Destroy
//
// What happens is reported by events, one at a time, to the function that an ID was made with. Consumers in this process
// need no events: [Conn] and [Listener] are the same with calls that wait, under contexts, and bring RC queue pairs up.
//
// A message is sent and received as any other packet: captures show it, and fault rules lose it. The rules of the
// protocol are in package conn, as a value; timers come from Config.Clock. Nothing that the peer says is trusted: a connection
// belongs to the address that it began with, communication IDs are random, and what strangers can make the manager keep
// is bounded (Config.Backlog).
package rdmacm
