// Package ctl implements the control protocol of a service: how a command, a launcher or a library finds the service,
// sends requests, and hands over descriptors.
//
// # Connection
//
// A service listens on a Unix stream socket ([Location]). [Dial] connects to it, and looks up the owner of the other
// end (SO_PEERCRED) before anything is sent. A service can access all memory and files of its programs. So only
// services of root, of the user and of a named user are trusted. The service in turn trusts the kernel's information
// about a client, not the client's own.
//
// # First message
//
// The client sends a [Request]. The service answers each with one [Response], in order. Three requests change that:
//
//	OpAttach   after the answer the connection represents a program. From then on the service asks ([Help]), the
//	           launcher answers ([HelpAnswer]), and either end closes the connection when it ends.
//	OpOpen     the connection represents an open device file, and carries the protocol of package devfile
//	OpCapture  the file goes to a socket that comes with the request ([PieceWriter], [CaptureStream]); the connection
//	           still accepts requests.
//
// # Messages
//
// A message is a length, four bytes in little-endian order, and that number of bytes of JSON. A receiver ignores
// unknown fields. It checks the length before it reads more, and allocates memory for received bytes, not for the
// announced length. The limit is [MaxRequest] for messages to a service, [MaxHelpAnswer] for a launcher's answer and
// [MaxResponse] for the answer of a service. Decoding a message takes up to some hundred times the size of its JSON,
// including garbage. That is a few MiB for a request. For a response, a client relies on the service.
//
// # Descriptors
//
// One descriptor may travel with the first byte of a message (SCM_RIGHTS). After [Conn.Send] the caller still owns the
// descriptor, and may close it. [Conn.Receive] returns the descriptor with the message, and the caller must close it.
// Receive closes descriptors of a malformed message, and surplus ones. A received descriptor is close-on-exec.
//
// # Versions
//
// A request carries [Protocol], since a running service may be of another build than the command. A service answers
// another version with EPROTO, and an error that names both builds ([Build]), the older one and the remedy. For a
// service that names no build, the client makes that error itself. OpStop and OpYield have the same meaning in all
// versions, so that a command of another version can end the service, or replace an idle one. Protocol is increased
// whenever a request or a response changes its meaning, but not for a field that may be ignored.
//
// An error travels as its text and its errno ([Failure]). The client gets a [RemoteError], which wraps the errno:
// errors.Is(err, syscall.ENODEV) has the same result on both sides.
//
// An error travels as its text and its errno ([Failure]). The client gets a [RemoteError], which wraps the errno:
// errors.Is(err, syscall.ENODEV) has the same result on both sides.
package ctl
