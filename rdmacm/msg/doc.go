// Package msg encodes and decodes the messages of the communication manager (IBA vol. 1, chapter 12): management
// datagrams of 256 bytes that two CMs exchange on queue pair 1.
//
//	client                 server              client                 server
//	   | ------- REQ -------> |                   | ----- SIDR_REQ -----> |
//	   | <------ MRA -------- |  "wait"           | <---- SIDR_REP ------ |
//	   | <------ REP -------- |
//	   | ------- RTU -------> |                   | ------- DREQ -------> |
//	   |                      |                   | <------ DREP -------- |
//	   | <------ REJ -------> |  instead of REP or RTU
//
// A [Message] is a value; [Parse] and [Append] translate it. Parse accepts every datagram of the class whose length is
// right: reserved bits are ignored, and fields that contradict each other are the caller's concern.
//
// [ServiceID] and [IPHeader] are what annex A11 adds: the port space and port of an RDMA IP service, and the addresses
// of a connection at the beginning of the private data.
package msg
