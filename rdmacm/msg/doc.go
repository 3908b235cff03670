// Package msg encodes and decodes the messages of the communication manager (IBA vol. 1, chapter 12). They are
// management datagrams of 256 bytes that two CMs exchange on queue pair 1.
//
//	client                 server              client                 server
//	   | ------- REQ -------> |                   | ----- SIDR_REQ -----> |
//	   | <------ MRA -------- |  "wait"           | <---- SIDR_REP ------ |
//	   | <------ REP -------- |
//	   | ------- RTU -------> |                   | ------- DREQ -------> |
//	   |                      |                   | <------ DREP -------- |
//	   | <------ REJ -------> |  instead of REP or RTU
//
// A [Message] is a value, which [Parse] decodes and [Append] encodes. Parse accepts every datagram of the class
// with a valid length. It ignores reserved bits, and does not check the consistency of fields.
//
// Annex A11 defines [ServiceID], which contains the port space and port of an RDMA IP service, and [IPHeader],
// which contains the addresses of a connection at the start of the private data.
package msg
