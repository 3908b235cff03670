// Package uapi provides the user ABI of Linux RDMA as Go types. The ABI consists of the bytes that a program and
// /dev/infiniband/uverbsN exchange by write, ioctl, read and mmap.
//
// The package mirrors the kernel headers rdma/ib_user_verbs.h, ib_user_ioctl_verbs.h, ib_user_ioctl_cmds.h,
// rdma_user_ioctl.h, rdma_user_ioctl_cmds.h and rdma_user_rxe.h. The package also contains numbers that other headers
// define and programs use: states, opcodes, statuses and attribute masks. The name of a type is the name of the C
// struct without ib_uverbs_, in Go's spelling: RegMR is ib_uverbs_reg_mr. The comment of the type contains the name of
// the C struct. The package has no behaviour of its own. Package uverbs executes the commands, and driver/rxe/layout
// reads the rings.
//
// # A command by write
//
// A program opens the uverbs file and writes one command per call. All lengths in a plain command count 32-bit words:
//
//	 0  CmdHdr      Command, InWords, OutWords
//	 8  command     such as RegMR; first its Response, if it has one
//	    driver data as much as InWords has left
//
//	InWords*4 == bytes written, OutWords*4 == bytes at Response
//
// The call returns the number of bytes written, or an error. The response is stored at the address that the command
// contains. The core's part of the response, such as RegMRResp, comes first and has the same size as in C. The driver's
// part, such as RXECreateCQResp, follows the core's part without a gap. Handles name objects. A handle is a number that
// is valid only for one open file.
//
// An extended command (CmdFlagExtended) separates the core's part from the driver's part. Each part can therefore grow.
// The lengths count 64-bit words:
//
//	 0  CmdHdr      Command, InWords, OutWords: core
//	 8  ExCmdHdr    Response, ProviderInWords, ProviderOutWords: driver
//	24  command     InWords*8 bytes, such as ExCreateCQ; no Response in it
//	    driver data ProviderInWords*8 bytes
//
// A program may send more bytes than an older callee supports. The callee rejects additional bytes unless they are
// zero; see DecodePrefix. The callee truncates the response to the caller's buffer and stores the number of valid bytes
// in ResponseLength; see Encode.
//
// # A command by ioctl
//
// The argument of request VerbsIoctl is an IoctlHdr, which names a method of an object type, followed by NumAttrs
// attributes of type Attr. An attribute is one of these: a small number or structure in the Attr itself, a buffer to
// read or write, a handle, or a file descriptor. Each method numbers its attributes from zero (AttrCreateQPHandle,
// ...). AttrUHWIn and AttrUHWOut are for the driver and can occur in any method. An unknown attribute is an error only
// if AttrFMandatory is set.
//
// The method InvokeWrite carries every command of the write form: MethodInvokeWrite of ObjectDevice. AttrWriteCmd
// contains the number and CmdFlagExtended, AttrCoreIn contains the command without headers, and AttrUHWIn contains its
// driver data. AttrCoreOut and AttrUHWOut are separate buffers for the two parts of the response. The attributes
// contain all lengths, and Response fields are ignored. The C library first tries this method. The library uses write
// instead if the method returns EPROTONOSUPPORT or the request returns ENOTTY.
//
// # Events
//
// Completion channels and the asynchronous event file are separate files. A read from such a file returns whole
// records: CompEventDesc and AsyncEventDesc.
//
// # The rings of rxe
//
// The software RoCE driver shares its queues with the program. The driver's part of the response to CreateCQ, CreateQP,
// CreateSRQ or ResizeCQ contains an MMInfo for each ring. The program maps a ring by mmap of the uverbs file with the
// offset and size in the MMInfo:
//
//	  0  RXEQueueBuf  Log2ElemSize, IndexMask
//	128               ProducerIndex
//	256               ConsumerIndex
//	384  slot 0, slot 1, ... slot IndexMask, each 1<<Log2ElemSize bytes
//
// Indices range from 0 to IndexMask and wrap around. Equal indices mean an empty ring. Therefore one slot is always
// free. The program fills send rings (RXESendWQE, followed by RXESGE elements or inline data) and receive rings
// (RXERecvWQE, followed by RXESGE). The program consumes the entries of completion rings (WC). After posting sends, the
// program writes a PostSend command without requests, the doorbell. Receives have no doorbell.
//
// # Bytes
//
// Every struct has explicit padding. The layout of a struct in Go is therefore equal to its layout in C on amd64 and
// arm64, and no byte is uninitialised. Decode, DecodePrefix, Encode and AppendTo copy between structs and bytes. The
// tables in testdata contain the offset of each member and the value of each constant. The command genlayout generates
// them with the C compiler. The tests compare every type and constant with the tables, and also compare the tables with
// the headers of the machine.
package uapi

//go:generate go run ./internal/genlayout -o testdata/kernel.txt
//go:generate ../bin/stringer -linecomment -output names.go -type=Command,ExCommand,EventType,WCStatus,WCOpcode,WROpcode,QPType,QPState,MigState,SRQType,PortState,PortPhysState,LinkLayer,GIDType,AtomicCap,ObjectID,NodeType
