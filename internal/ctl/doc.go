// Package ctl implements the control protocol of a service. With it a command, a launcher or a library finds the
// service, sends requests, and passes descriptors.
//
// # Connection
//
// A service listens on a Unix stream socket ([Location]). [Dial] connects to the service, and looks up the owner of
// the other end (SO_PEERCRED) before it sends data. A service can access all memory and files of its programs.
// Therefore clients trust only services of root, of the user and of a named user. The service in turn trusts the
// kernel's information about a client, not the client's own claims.
//
// # First message
//
// The client sends a [Request]. The service answers each request with one [Response], in order. Three requests
// change this pattern:
//
//	OpAttach   after the answer the connection represents a program. From then on the service asks ([Help]), the
//	           launcher answers ([HelpAnswer]), and either end closes the connection when it ends.
//	OpOpen     the connection represents an open device file, and carries the protocol of package devfile
//	OpCapture  the file goes to a socket that comes with the request ([PieceWriter], [CaptureStream]); the connection
//	           still accepts requests.
//
// # Messages
//
// A message consists of a length, four bytes in little-endian order, and that number of bytes of JSON. A receiver
// ignores unknown fields. A receiver checks the length before it reads more, and allocates memory for received
// bytes, not for the announced length. The limit is [MaxRequest] for messages to a service, [MaxHelpAnswer] for a
// launcher's answer and [MaxResponse] for the answer of a service. Decoding a message takes up to about a hundred
// times the size of its JSON, including garbage. For a request, this is a few MiB. For a response, a client trusts
// the service.
//
// # Descriptors
//
// One descriptor may travel with the first byte of a message (SCM_RIGHTS). After [Conn.Send] the caller still owns
// the descriptor, and may close it. [Conn.Receive] returns the descriptor with the message, and the caller must
// close it. Receive closes the descriptors of a malformed message, and surplus descriptors. A received descriptor
// is close-on-exec.
//
// # Versions
//
// A request carries [ProtocolVersion], because a running service may come from another build than the command. A
// service answers another version with EPROTO. The error names both builds ([BuildName]), the older of the two, and
// names the remedy. For a service that reports no build, the client makes that error itself. OpStop and OpYield have
// the same meaning in all versions. A command of another version can therefore end the service, or replace an idle
// service. Protocol is increased whenever a request or a response changes its meaning, but not for a new field that a
// receiver may ignore.
//
// An error travels as its text and its errno ([ErrorResponse]). The client gets a [remoteError], which wraps the errno,
// so errors.Is(err, syscall.ENODEV) has the same result on both sides.
//
// An error travels as its text and its errno ([ErrorResponse]). The client gets a [remoteError], which wraps the errno,
// so errors.Is(err, syscall.ENODEV) has the same result on both sides.
package ctl
