// Package uapi is the user ABI of Linux RDMA in Go types: what crosses
// /dev/infiniband/uverbsN by write, ioctl, read and mmap, byte for byte.
//
// It mirrors the kernel headers rdma/ib_user_verbs.h, ib_user_ioctl_verbs.h,
// ib_user_ioctl_cmds.h, rdma_user_ioctl.h, rdma_user_ioctl_cmds.h and
// rdma_user_rxe.h, and the numbers that programs meet through them but that are
// spelled out elsewhere (states, opcodes, statuses, attribute masks). A type is
// named like the C struct without ib_uverbs_, in Go's spelling, and its comment
// names the C struct; RegMR is ib_uverbs_reg_mr. There is no behaviour here:
// package uverbs answers the commands, driver/rxe works the rings.
//
// # A command by write
//
// A program opens the uverbs file and writes one command per call. All lengths
// in a plain command count 32-bit words:
//
//	 0  CmdHdr      Command, InWords, OutWords
//	 8  command     such as RegMR; first its Response, if it has one
//	    driver data as much as InWords has left
//
//	InWords*4 == bytes written, OutWords*4 == bytes at Response
//
// The call returns the number of bytes written, or an error. The response goes
// to the address in the command: first the core's part, such as RegMRResp, at
// its size in C, and right behind it the driver's, such as RXECreateCQResp.
// Objects are named by handles, which are numbers of this open file.
//
// An extended command (CmdFlagExtended) separates the core's part from the
// driver's, so that either may grow. Its lengths count 64-bit words:
//
//	 0  CmdHdr      Command, InWords, OutWords: core
//	 8  ExCmdHdr    Response, ProviderInWords, ProviderOutWords: driver
//	24  command     InWords*8 bytes, such as ExCreateCQ; no Response in it
//	    driver data ProviderInWords*8 bytes
//
// A newer program sends more than an older callee knows. The callee reads what
// it knows and refuses the rest unless it is zero: DecodePrefix. It writes as
// much of the response as the caller has room for and says in ResponseLength
// how much it filled in: Encode truncates.
//
// # A command by ioctl
//
// Request VerbsIoctl takes an IoctlHdr that names a method of an object type,
// and NumAttrs attributes of type Attr. An attribute is a small number or
// structure in the Attr itself, a buffer to read or write, a handle or a file
// descriptor. Each method numbers its attributes from zero (AttrCreateQPHandle,
// ...); AttrUHWIn and AttrUHWOut are the driver's, of any method. An unknown
// attribute matters only if it has AttrFMandatory.
//
// One method carries every command of the write form: MethodInvokeWrite of
// ObjectDevice, with the number and CmdFlagExtended in AttrWriteCmd, the
// command without headers in AttrCoreIn, its driver data in AttrUHWIn, and
// separate buffers for the two parts of the response in AttrCoreOut and
// AttrUHWOut. Lengths are those of the attributes; Response fields mean
// nothing. The C library asks for this first and falls back to write if the
// method answers EPROTONOSUPPORT or the request ENOTTY.
//
// # Events
//
// Completion channels and the asynchronous event file are files of their own.
// A read returns whole records: CompEventDesc, AsyncEventDesc.
//
// # The rings of rxe
//
// The software RoCE driver shares its queues with the program. The driver's
// part of the response to CreateCQ, CreateQP, CreateSRQ or ResizeCQ is an
// MMInfo for each ring; mmap of the uverbs file with that offset and size maps
// it:
//
//	  0  RXEQueueBuf  Log2ElemSize, IndexMask
//	128               ProducerIndex
//	256               ConsumerIndex
//	384  slot 0, slot 1, ... slot IndexMask, each 1<<Log2ElemSize bytes
//
// Indices run from 0 to IndexMask and wrap; equal indices mean empty, so one
// slot is always free. The program fills send rings (RXESendWQE, then RXESGE
// elements or inline data) and receive rings (RXERecvWQE, then RXESGE), and
// empties completion rings (WC). A send is announced by a PostSend command
// without requests; a receive is not announced.
//
// # Bytes
//
// Every struct has explicit padding, so that its layout in Go is that of C on
// amd64 and arm64 and no byte of it is left unset. Decode, DecodePrefix, Encode
// and AppendTo copy between structs and bytes. The tables in testdata, taken
// from the C compiler by genlayout, say where each member is and what each
// constant is worth; the tests hold every type and constant against them, and
// them against the headers of the machine.
package uapi

//go:generate go run ./internal/genlayout -o testdata/kernel.txt
//go:generate ../bin/stringer -linecomment -output names.go -type=Command,ExCommand,EventType,WCStatus,WCOpcode,WROpcode,QPType,QPState,MigState,SRQType,PortState,PortPhysState,LinkLayer,GIDType,AtomicCap,ObjectID,NodeType
