// Package ctl is the control protocol of a service: how a command, a launcher or a library finds the service, asks it
// for something, and hands over descriptors.
//
// # Connection
//
// A service listens on a Unix stream socket ([Location]). [Dial] connects to it and looks up the owner of the other end
// (SO_PEERCRED) before anything is sent: a service reaches all memory and all files of the programs that it is given,
// so only root's, the user's own and that of a named user are believed. The service in turn believes what the kernel
// reports of a client, and nothing that the client says of itself.
//
// # Who speaks first
//
// The client does, with a [Request]; the service answers each with one [Response], in order. Three requests change
// that:
//
//	OpAttach   the answer makes the connection stand for a program. From then on the service asks ([Help]), the launcher
//	           answers ([HelpAnswer]), and either end closes the connection when it has ended.
//	OpOpen     the connection stands for an open device file, and speaks the protocol of package devfile
//	OpCapture  the file goes to a socket that comes with the request ([PieceWriter], [CaptureStream]); the connection
//	           remains one of requests.
//
// # Messages
//
// A message is its length, four bytes in little-endian order, and so many bytes of JSON. A receiver ignores fields that
// it does not know. The length is checked before anything else is read, and memory is allocated for what has arrived,
// not for what was announced. The limit is [MaxRequest] for what a service receives, [MaxHelpAnswer] for a launcher's
// answer and [MaxResponse] for the answer of a service. A decoded message, with the garbage of decoding it, takes up to
// some hundred times the memory of its JSON: a few MiB for a request; for a response a client relies on the service.
//
// # Descriptors
//
// One descriptor may travel with the first byte of a message (SCM_RIGHTS). [Conn.Send] leaves it to its caller, who may
// close it when Send has returned. [Conn.Receive] returns it with the message to its caller, who closes it, and closes
// those that come with a malformed message, or in excess of one. It is close-on-exec.
//
// # Versions
//
// A request carries [Protocol], since the service that a user has running may be of another build than the command. A
// service answers another version with EPROTO, and with an error that names both builds ([Build]), the older one and
// what to do; a client makes that error itself for a service that names no build. OpStop and OpYield have the same
// meaning in all versions, so that there is a way out, and a service that is not in use makes way. Protocol is raised
// whenever a request or a response changes its meaning, and not for a field that may be ignored.
//
// # Errors
//
// An error travels as its text and its errno ([Failure]). The client gets a [RemoteError], which wraps the errno:
// errors.Is(err, syscall.ENODEV) has the same result on both sides.
package ctl
