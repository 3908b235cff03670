package uverbs

import (
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/internal/states"
	"verbena/uapi"
	"verbena/uapi/verb"
	"verbena/umem"
)

const (
	// maxCommand is the maximum length of a command in bytes. Only a long list of work requests would exceed this
	// limit.
	maxCommand = 16 << 10
	cmdHdrSize = 8
	exHdrSize  = 24 // struct ib_uverbs_cmd_hdr and struct ib_uverbs_ex_cmd_hdr
	// doorbellSize is the length of a POST_SEND without work requests.
	doorbellSize = cmdHdrSize + 24
)

// command is a command of the write form together with its function.
type command struct {
	verb.Command
	spec *verb.Spec
	run  func(*call) error
}

// plainHandlers maps each plain command in the table of verbs to its function.
var plainHandlers = map[uapi.Command]func(*call) error{
	uapi.CmdGetContext:        cmdGetContext,
	uapi.CmdQueryDevice:       cmdQueryDevice,
	uapi.CmdQueryPort:         cmdQueryPort,
	uapi.CmdAllocPD:           cmdAllocPD,
	uapi.CmdDeallocPD:         cmdDeallocPD,
	uapi.CmdCreateAH:          cmdCreateAH,
	uapi.CmdDestroyAH:         cmdDestroyAH,
	uapi.CmdRegMR:             cmdRegMR,
	uapi.CmdDeregMR:           cmdDeregMR,
	uapi.CmdReregMR:           cmdReregMR,
	uapi.CmdAllocMW:           cmdAllocMW,
	uapi.CmdDeallocMW:         cmdDeallocMW,
	uapi.CmdCreateCompChannel: cmdCreateCompChannel,
	uapi.CmdCreateCQ:          cmdCreateCQ,
	uapi.CmdResizeCQ:          cmdResizeCQ,
	uapi.CmdDestroyCQ:         cmdDestroyCQ,
	uapi.CmdPollCQ:            cmdPollCQ,
	uapi.CmdReqNotifyCQ:       cmdReqNotifyCQ,
	uapi.CmdCreateQP:          cmdCreateQP,
	uapi.CmdQueryQP:           cmdQueryQP,
	uapi.CmdModifyQP:          cmdModifyQP,
	uapi.CmdDestroyQP:         cmdDestroyQP,
	uapi.CmdPostSend:          cmdPostSend,
	uapi.CmdPostRecv:          cmdPostRecv,
	uapi.CmdAttachMcast:       cmdAttachMcast,
	uapi.CmdDetachMcast:       cmdDetachMcast,
	uapi.CmdCreateSRQ:         cmdCreateSRQ,
	uapi.CmdCreateXSRQ:        cmdCreateXSRQ,
	uapi.CmdModifySRQ:         cmdModifySRQ,
	uapi.CmdQuerySRQ:          cmdQuerySRQ,
	uapi.CmdDestroySRQ:        cmdDestroySRQ,
	uapi.CmdPostSRQRecv:       cmdPostSRQRecv,
	uapi.CmdOpenXRCD:          cmdOpenXRCD,
	uapi.CmdCloseXRCD:         cmdCloseXRCD,
	uapi.CmdOpenQP:            cmdOpenQP,
}

// extendedHandlers maps each extended command to its function.
var extendedHandlers = map[uapi.ExCommand]func(*call) error{
	uapi.ExCmdQueryDevice: cmdExQueryDevice,
	uapi.ExCmdCreateCQ:    cmdExCreateCQ,
	uapi.ExCmdCreateQP:    cmdExCreateQP,
	uapi.ExCmdModifyQP:    cmdExModifyQP,
}

// commands holds the commands of the table of verbs, by number.
var commands = map[uint32]*command{}

func init() {
	for i := range verb.Table {
		v := &verb.Table[i]
		for _, c := range v.Commands {
			run := plainHandlers[uapi.Command(c.Number)]
			if c.Number&uapi.CmdFlagExtended != 0 {
				run = extendedHandlers[uapi.ExCommand(c.Number&uapi.CmdCommandMask)]
			}
			commands[c.Number] = &command{c, v, run}
		}
	}
}

// exceedsCommands reports whether a number exceeds the numbers of all commands of its form. For an unknown number below
// this limit, the header is checked first, in either form like the header of a plain command.
// (uverbs_api.notsupp_method)
func exceedsCommands(number uint32) bool {
	if number&uapi.CmdFlagExtended != 0 {
		return uapi.ExCommand(number&uapi.CmdCommandMask) > uapi.ExCmdModifyQP
	}
	return uapi.Command(number&uapi.CmdCommandMask) > uapi.CmdOpenQP
}

// commandName returns the name of a command for errors and traces. commandName accepts unknown numbers.
func commandName(number uint32) string { return verb.Command{Number: number}.String() }

// findCommand returns the command with the given number, which includes flags. (uapi_get_method)
func findCommand(number uint32) (*command, error) {
	if number&^(uapi.CmdCommandMask|uapi.CmdFlagExtended) != 0 {
		return nil, fmt.Errorf("command %#x: unknown flags: %w", number, syscall.EINVAL)
	}
	c := commands[number]
	if c == nil {
		return nil, fmt.Errorf("%s: %w", commandName(number), syscall.EOPNOTSUPP)
	}
	return c, nil
}

// call is a command in progress.
type call struct {
	f      *File
	caller Caller
	in     []byte   // the core's request
	room   int      // size in bytes of the caller's buffer for the core's response
	resp   []byte   // the core's response, truncated to the caller's buffer
	udata  ib.Udata // the driver-private parts
	// exact restricts the output to resp. Otherwise the rest of the buffer is cleared.
	exact bool
	// reader is the read end of a new event file, or -1. The response begins with the number of this descriptor in the
	// program.
	reader int
	// async, if not nil, receives the asynchronous events of a new object. Otherwise the first event file of the
	// context receives them.
	async *eventFile
	// callbacks holds the callbacks of the device. The callbacks run when the thread holds no lock.
	callbacks ib.Hold
	verb      *verb.Spec    // see Server.OnVerb
	failed    error         // error of a command that nevertheless has a response
	stored    *ib.Stored    // data of the driver for the program's memory
	commit    func()        // called after the response has been delivered; may be nil
	abort     func()        // called if delivery of the response has failed; may be nil
	trace     *CommandTrace // nil if the command is not traced
	qp        *qpObject     // the queue pair that the command concerns; nil if there is none. See noteQP
}

// QPError is the error of a command for a queue pair.
type QPError struct {
	Device string
	Num    uint32
	err    error
}

func (e *QPError) Error() string { return e.err.Error() }

// Unwrap returns the error without the queue pair.
func (e *QPError) Unwrap() error { return e.err }

// noteQP notes the queue pair of the command for its error.
func (c *call) noteQP(handle uint32) {
	if o := c.f.objects.find(handle); o != nil {
		c.qp, _ = o.res.(*qpObject)
	}
}

// decodeRequest decodes the core's request. Missing fields at the end of the request are zero; additional data must be
// zero. (uverbs_request)
func decodeRequest[T any](c *call) (T, error) {
	v, excess := uapi.DecodePrefix[T](c.in)
	if c.trace != nil {
		c.trace.Request = formatFields(v)
	}
	if excess {
		return v, fmt.Errorf("unknown data at the end of the command are not zero: %w", syscall.EOPNOTSUPP)
	}
	return v, nil
}

// setResponse sets the core's response. (uverbs_response)
func setResponse[T any](c *call, v T) {
	c.resp = uapi.AppendTo(c.resp[:0], &v)
	if c.trace != nil {
		c.trace.Response = formatFields(v)
	}
}

// responseLength returns the value for the field ResponseLength of a response. (uverbs_response_length)
func responseLength[T any](c *call) uint32 { return uint32(min(c.room, uapi.SizeOf[T]())) }

// holdCallbacks announces that this thread will soon run the device's callbacks.
func (c *call) holdCallbacks() { userOps.HoldCallbacks(c.f.dev.ib, &c.callbacks) }

// publishCreatedObject publishes a new object after the response has been delivered.
func (c *call) publishCreatedObject(o *object) {
	c.commit, c.abort = o.publish, func() { c.f.destroyUndeliveredObject(o) }
}

// readAsyncEvents returns the event file for the asynchronous events of a new object, or nil.
func (c *call) asyncEventFile() *eventFile {
	if c.async != nil {
		return c.async
	}
	return c.f.events.defaultAsyncFile()
}

// run executes the command in the midlayer. The caller must call finish.
func (c *call) run(cmd func(*call) error) error {
	c.reader = -1
	c.udata.Context, c.udata.Space = userContext{c.f}, c.caller.Space()
	c.udata.Defer = func(s ib.Stored) { c.stored = &s }
	defer runHold(&c.callbacks, nil) // no event waits for the response, which the caller's memory may block
	if err := c.announceVerb(); err != nil {
		return err
	}
	if err := c.f.beginCommand(); err != nil {
		return err
	}
	defer c.f.life.RUnlock()
	if c.f.contextState() == states.ContextClosed {
		return errFileClosed
	}
	err := cmd(c)
	if err != nil && c.qp != nil {
		err = &QPError{c.f.dev.ib.Name(), c.qp.Num(), err}
	}
	return err
}

// finish delivers the response of a successful command. finish publishes new objects. If delivery fails, it destroys
// them.
func (c *call) finish(deliver func() error) error {
	err := c.installEventFile()
	if err == nil && c.stored != nil {
		err = c.storeDriverData()
	}
	if err == nil {
		err = deliver()
	}
	if err != nil && c.abort != nil {
		c.abort()
	}
	if err == nil && c.commit != nil {
		c.commit()
	}
	return err
}

// storeDriverData writes the driver's data to the program's memory and then completes the driver's call.
func (c *call) storeDriverData() error {
	failed := c.caller.Space().WriteV([][]byte{c.stored.Data}, c.stored.Addr)
	if err := c.f.beginCommand(); err != nil {
		return err
	}
	defer c.f.life.RUnlock()
	switch err := c.f.checkContext(); {
	case c.f.contextState() == states.ContextClosed: // the end of the context has destroyed the driver's objects
		return err
	case failed == nil && err == nil:
		return c.stored.Done()
	case failed == nil:
		failed = err
	}
	c.stored.Drop()
	return failed
}

// installEventFile duplicates the read end of a new event file into the program.
func (c *call) installEventFile() error {
	if c.reader < 0 {
		return nil
	}
	defer unix.Close(c.reader)
	fd, err := c.caller.InstallFD(c.reader, true)
	if err != nil {
		return fmt.Errorf("install the descriptor of an event file: %w", err)
	}
	putUint32(c.resp, uint32(fd))
	return nil
}

// zeros fills the caller's buffer after the response.
var zeros [4096]byte

// responseBuffers returns the response for the caller.
func (c *call) responseBuffers() [][]byte {
	bufs := [][]byte{c.resp[:min(len(c.resp), c.room)]}
	if !c.exact {
		for rest := c.room - len(bufs[0]); rest > 0; rest -= len(zeros) {
			bufs = append(bufs, zeros[:min(rest, len(zeros))])
		}
	}
	return bufs
}

// commandBuffer is the buffer for reading a command.
type commandBuffer struct {
	data [maxCommand]byte
	iov  [1][]byte
}

var commandBuffers = sync.Pool{New: func() any { return new(commandBuffer) }}

// read reads n bytes of the caller's memory.
func (b *commandBuffer) read(space umem.Space, addr uint64, n int) ([]byte, error) {
	b.iov[0] = b.data[:n]
	return b.iov[0], space.ReadV(b.iov[:], addr)
}

// Write executes a write(2) of n bytes at addr of the caller's memory. Each write is one command. Write returns n, or
// an error that wraps a syscall.Errno. Write may sleep, except for a doorbell. (ib_uverbs_write)
//
// A program that sends its other commands by ioctl only writes doorbells. If the context of such a program has few
// queue pairs, the command is not read, because checking the queue pairs is cheaper. If no queue pair has posted
// requests, the command is read.
func (f *File) Write(c Caller, addr uint64, n int) (int, error) {
	doorbell := n == doorbellSize && f.byIoctl.Load() && !f.byWrite.Load()
	if doorbell && f.ringAllPosted(c) {
		return n, nil
	}
	if n < cmdHdrSize || n > maxCommand {
		return 0, fmt.Errorf("command of %d bytes: %w", n, syscall.EINVAL)
	}
	buf := commandBuffers.Get().(*commandBuffer)
	defer commandBuffers.Put(buf)
	if doorbell && f.executePeekedDoorbell(c, buf, addr) {
		return n, nil
	}
	b, err := buf.read(c.Space(), addr, n)
	if err != nil {
		return 0, fmt.Errorf("read the command: %w", err)
	}
	if n == doorbellSize && f.executeDoorbell(c, b) {
		return n, nil
	}
	if n == armWriteSize && f.dev.srv.onVerb.Load() == nil && f.armCQByWrite(c, b) {
		return n, nil
	}
	if err := f.executeWrite(c, b); err != nil {
		return 0, err
	}
	return n, nil
}

// executeWrite executes the command in b.
func (f *File) executeWrite(c Caller, b []byte) error {
	hdr, _ := uapi.Decode[uapi.CmdHdr](b)
	cmd, err := findCommand(hdr.Command)
	name, trace := commandName(hdr.Command), commandTraceOf(c)
	if !isDoorbell(hdr) {
		trace.setName(name)
	}
	if err != nil {
		if !exceedsCommands(hdr.Command) && int(hdr.InWords)*4 != len(b) {
			return fmt.Errorf("%s: header states %d bytes, command has %d: %w", name, int(hdr.InWords)*4, len(b), syscall.EINVAL)
		}
		return err
	}
	k := &call{f: f, caller: c, trace: trace, verb: cmd.spec}
	var response, driverResponse uint64
	if hdr.Command&uapi.CmdFlagExtended != 0 {
		response, driverResponse, err = k.parseExtendedCommand(hdr, b)
	} else {
		response, driverResponse, err = k.parsePlainCommand(hdr, cmd, b)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if !isDoorbell(hdr) && !f.byWrite.Load() {
		f.byWrite.Store(true)
	}
	if err := k.run(cmd.run); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	err = k.finish(func() error {
		core := callerOutput{response, k.responseBuffers()}
		driver := callerOutput{driverResponse, [][]byte{k.udata.Out[:k.udata.N]}}
		return storeOutputs(c.Space(), core, driver)
	})
	if err != nil {
		return fmt.Errorf("%s: write the response: %w", name, err)
	}
	if k.failed != nil {
		return fmt.Errorf("%s: %w", name, k.failed)
	}
	return nil
}

// parsePlainCommand checks and parses the header of a plain command. (verify_hdr)
func (c *call) parsePlainCommand(hdr uapi.CmdHdr, cmd *command, b []byte) (response, driverResponse uint64, err error) {
	if int(hdr.InWords)*4 != len(b) {
		return 0, 0, fmt.Errorf("header states %d bytes, command has %d: %w", int(hdr.InWords)*4, len(b), syscall.EINVAL)
	}
	if len(b) < cmdHdrSize+cmd.Request {
		return 0, 0, fmt.Errorf("request has %d bytes, want at least %d: %w", len(b)-cmdHdrSize, cmd.Request, syscall.ENOSPC)
	}
	room := int(hdr.OutWords) * 4
	if room < cmd.Response {
		return 0, 0, fmt.Errorf("response buffer has %d bytes, want at least %d: %w", room, cmd.Response, syscall.ENOSPC)
	}
	c.in = b[cmdHdrSize:]
	if cmd.Driver {
		c.in, c.udata.In = c.in[:cmd.Request], c.in[cmd.Request:]
	}
	if !cmd.Answers {
		return 0, 0, nil
	}
	response = uint64At(c.in)
	c.room = room
	if cmd.Driver {
		c.room = cmd.Response
		c.allocDriverResponse(room - cmd.Response)
	}
	return response, response + uint64(c.room), nil
}

// parseExtendedCommand checks and parses the header of an extended command. Extended commands have no minimum sizes.
func (c *call) parseExtendedCommand(hdr uapi.CmdHdr, b []byte) (response, driverResponse uint64, err error) {
	ex, ok := uapi.Decode[uapi.ExCmdHdr](b[cmdHdrSize:])
	if !ok {
		return 0, 0, fmt.Errorf("extended command has only %d bytes: %w", len(b), syscall.EINVAL)
	}
	in, driverIn := int(hdr.InWords)*8, int(ex.ProviderInWords)*8
	room, driverRoom := int(hdr.OutWords)*8, int(ex.ProviderOutWords)*8
	b = b[exHdrSize:]
	switch {
	case in+driverIn != len(b):
		return 0, 0, fmt.Errorf("header states %d bytes, command has %d: %w", in+driverIn, len(b), syscall.EINVAL)
	case ex.CmdHdrReserved != 0:
		return 0, 0, fmt.Errorf("reserved field of the header is not zero: %w", syscall.EINVAL)
	case (ex.Response != 0) != (room+driverRoom != 0):
		return 0, 0, fmt.Errorf("response address %#x does not match a response buffer of %d bytes: %w",
			ex.Response, room+driverRoom, syscall.EINVAL)
	}
	c.in, c.udata.In = b[:in], b[in:]
	c.room = room
	c.allocDriverResponse(driverRoom)
	return ex.Response, ex.Response + uint64(room), nil
}

// allocDriverResponse allocates the buffer for the driver's response.
func (c *call) allocDriverResponse(n int) {
	if n > 0 {
		c.udata.Out = make([]byte, min(n, maxCommand))
	}
}

// callerOutput is data for the caller's memory, with its address.
type callerOutput struct {
	addr uint64
	bufs [][]byte
}

func (o callerOutput) len() (n uint64) {
	for _, b := range o.bufs {
		n += uint64(len(b))
	}
	return n
}

// storeOutputs stores outputs. storeOutputs stores two outputs at once if the second one directly follows the first.
func storeOutputs(space umem.Space, outs ...callerOutput) error {
	for i := 0; i < len(outs); i++ {
		o := outs[i]
		for ; i+1 < len(outs) && outs[i+1].addr == o.addr+o.len(); i++ {
			o.bufs = append(o.bufs, outs[i+1].bufs...)
		}
		if o.len() == 0 {
			continue
		}
		if err := space.WriteV(o.bufs, o.addr); err != nil {
			return err
		}
	}
	return nil
}
