// Package uapi provides the user ABI of Linux RDMA in Go types: the bytes that a program and /dev/infiniband/uverbsN
// exchange by write, ioctl, read and mmap.
//
// It mirrors the kernel headers rdma/ib_user_verbs.h, ib_user_ioctl_verbs.h, ib_user_ioctl_cmds.h, rdma_user_ioctl.h,
// rdma_user_ioctl_cmds.h and rdma_user_rxe.h. It also has numbers that programs use but that other headers define:
// states, opcodes, statuses and attribute masks. The name of a type is that of the C struct without ib_uverbs_, in Go's
// spelling: RegMR is ib_uverbs_reg_mr. The comment of the type names the C struct. The package has no behaviour.
// Package uverbs executes the commands, and driver/rxe processes the rings.
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
// The call returns the number of bytes written, or an error. The response is stored at the address in the command. The
// core's part, such as RegMRResp, comes first and has its size in C. The driver's part, such as RXECreateCQResp,
// follows it without a gap. Handles name objects; a handle is a number that is valid for this open file.
//
// An extended command (CmdFlagExtended) separates the core's part from the driver's part, so that either may grow. The
// lengths count 64-bit words:
//
//	 0  CmdHdr      Command, InWords, OutWords: core
//	 8  ExCmdHdr    Response, ProviderInWords, ProviderOutWords: driver
//	24  command     InWords*8 bytes, such as ExCreateCQ; no Response in it
//	    driver data ProviderInWords*8 bytes
//
// A program may send more bytes than an older callee knows. The callee refuses unknown bytes unless they are zero; see
// DecodePrefix. It truncates the response to the caller's buffer and stores the number of valid bytes in
// ResponseLength; see Encode.
//
// # A command by ioctl
//
// Request VerbsIoctl takes an IoctlHdr, which names a method of an object type, and NumAttrs attributes of type Attr.
// An attribute is a small number or structure in the Attr itself, a buffer to read or write, a handle, or a file
// descriptor. Each method numbers its attributes from zero (AttrCreateQPHandle, ...). AttrUHWIn and AttrUHWOut belong
// to the driver, for any method. An unknown attribute is an error only if AttrFMandatory is set.
//
// One method carries every command of the write form: MethodInvokeWrite of ObjectDevice. AttrWriteCmd has the number
// and CmdFlagExtended, AttrCoreIn the command without headers, and AttrUHWIn its driver data. AttrCoreOut and
// AttrUHWOut are separate buffers for the two parts of the response. The attributes give all lengths; Response fields
// are ignored. The C library tries this method first. It falls back to write if the method returns EPROTONOSUPPORT or
// the request ENOTTY.
//
// # Events
//
// Completion channels and the asynchronous event file are files of their own.
// A read returns whole records: CompEventDesc, AsyncEventDesc.
//
// # The rings of rxe
//
// The software RoCE driver shares its queues with the program. The driver's part of the response to CreateCQ, CreateQP,
// CreateSRQ or ResizeCQ is an MMInfo for each ring. The program maps a ring by mmap of the uverbs file with that offset
// and size:
//
//	  0  RXEQueueBuf  Log2ElemSize, IndexMask
//	128               ProducerIndex
//	256               ConsumerIndex
//	384  slot 0, slot 1, ... slot IndexMask, each 1<<Log2ElemSize bytes
//
// Indices run from 0 to IndexMask and wrap. Equal indices mean an empty ring, so one slot is always free. The program
// fills send rings (RXESendWQE, then RXESGE elements or inline data) and receive rings (RXERecvWQE, then RXESGE), and
// empties completion rings (WC). After posting sends, the program writes a PostSend command without requests. Receives
// have no doorbell.
//
// # Bytes
//
// Every struct has explicit padding. Its layout in Go therefore equals that of C on amd64 and arm64, and no byte is
// left unset. Decode, DecodePrefix, Encode and AppendTo copy between structs and bytes. The tables in testdata hold the
// offset of each member and the value of each constant; genlayout generates them with the C compiler. The tests compare
// every type and constant with the tables, and the tables with the headers of the machine.
package uapi

//go:generate go run ./internal/genlayout -o testdata/kernel.txt
//go:generate ../bin/stringer -linecomment -output names.go -type=Command,ExCommand,EventType,WCStatus,WCOpcode,WROpcode,QPType,QPState,MigState,SRQType,PortState,PortPhysState,LinkLayer,GIDType,AtomicCap,ObjectID,NodeType
