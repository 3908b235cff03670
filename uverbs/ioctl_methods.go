package uverbs

import (
	"encoding/binary"
	"fmt"
	"math"
	"syscall"

	"verbena/internal/states"
	"verbena/uapi"
	"verbena/uapi/verb"
)

func putUint64(b []byte, v uint64) { binary.NativeEndian.PutUint64(b, v) }

func uint32Bytes(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func uint64Bytes(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }

// methodHandlers returns the function of each method in the table of verbs. (uverbs_std_types_*.c)
// methodHandlers is not a variable, because the variable would refer to itself through INVOKE_WRITE.
func methodHandlers() map[methodID]func(*ioctlCall) error {
	return map[methodID]func(*ioctlCall) error{
		{uapi.ObjectDevice, uapi.MethodInvokeWrite}:   invokeWrite,
		{uapi.ObjectDevice, uapi.MethodInfoHandles}:   infoHandles,
		{uapi.ObjectDevice, uapi.MethodQueryPort}:     queryPort,
		{uapi.ObjectDevice, uapi.MethodGetContext}:    getContext,
		{uapi.ObjectDevice, uapi.MethodQueryContext}:  queryContext,
		{uapi.ObjectDevice, uapi.MethodQueryGIDTable}: queryGIDTable,
		{uapi.ObjectDevice, uapi.MethodQueryGIDEntry}: queryGIDEntry,

		{uapi.ObjectDevice, uapi.MethodQueryPortSpeed}: queryPortSpeed,

		{uapi.ObjectAsyncEvent, uapi.MethodAsyncEventAlloc}: asyncEventAlloc,

		{uapi.ObjectPD, uapi.MethodPDDestroy}:     destroyMethod(uapi.AttrDestroyPDHandle, kindPD),
		{uapi.ObjectAH, uapi.MethodAHDestroy}:     destroyMethod(uapi.AttrDestroyAHHandle, kindAH),
		{uapi.ObjectMR, uapi.MethodMRDestroy}:     destroyMethod(uapi.AttrDestroyMRHandle, kindMR),
		{uapi.ObjectMW, uapi.MethodMWDestroy}:     destroyMethod(uapi.AttrDestroyMWHandle, kindMW),
		{uapi.ObjectXRCD, uapi.MethodXRCDDestroy}: destroyMethod(uapi.AttrDestroyXRCDHandle, kindXRCD),
		{uapi.ObjectCQ, uapi.MethodCQCreate}:      ioctlCreateCQ,
		{uapi.ObjectCQ, uapi.MethodCQDestroy}:     ioctlDestroyCQ,
		{uapi.ObjectQP, uapi.MethodQPCreate}:      ioctlCreateQP,
		{uapi.ObjectQP, uapi.MethodQPDestroy}:     ioctlDestroyQP,
		{uapi.ObjectSRQ, uapi.MethodSRQCreate}:    ioctlCreateSRQ,
		{uapi.ObjectSRQ, uapi.MethodSRQDestroy}:   ioctlDestroySRQ,
		{uapi.ObjectMR, uapi.MethodRegDMABufMR}:   regDMABufMR,
		{uapi.ObjectMR, uapi.MethodAdviseMR}:      adviseMR,
		{uapi.ObjectMR, uapi.MethodQueryMR}:       queryMR,
		{uapi.ObjectMR, uapi.MethodRegMR}:         ioctlRegMR,
	}
}

// methods holds the methods of the table of verbs.
var methods = map[methodID]*method{}

func init() {
	runs := methodHandlers()
	for i := range verb.Table {
		v := &verb.Table[i]
		for _, m := range v.Methods {
			id := methodID{m.Object, m.Method}
			methods[id] = &method{m, v, "", runs[id]}
		}
	}
}

// invokeWrite executes a command of the write form. The attributes contain the parts of the command.
// (UVERBS_HANDLER(UVERBS_METHOD_INVOKE_WRITE))
func invokeWrite(c *ioctlCall) error {
	number, err := c.numberUpTo(uapi.AttrWriteCmd, math.MaxUint32)
	if err != nil {
		return err
	}
	cmd, err := findCommand(uint32(number))
	name := commandName(uint32(number))
	c.trace.setName(name)
	if err != nil {
		return err
	}
	if c.in, err = c.inputBytes(uapi.AttrCoreIn); err != nil {
		return err
	}
	if c.udata.In, err = c.inputBytes(uapi.AttrUHWIn); err != nil {
		return err
	}
	c.call.room = c.bufferLen(uapi.AttrCoreOut)
	c.allocDriverResponse(c.bufferLen(uapi.AttrUHWOut))
	if len(c.in) < cmd.Request || c.call.room < cmd.Response {
		return fmt.Errorf("%s: request has %d bytes and response buffer %d, want at least %d and %d: %w",
			name, len(c.in), c.call.room,
			cmd.Request, cmd.Response, syscall.ENOSPC)
	}
	c.verb = cmd.spec
	if err := c.run(cmd.run); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	c.trace = nil // the response has been described already
	err = c.finish(func() error {
		if c.resp != nil {
			c.setOutput(uapi.AttrCoreOut, c.responseBuffers()...)
		}
		c.setOutput(uapi.AttrUHWOut, c.udata.Out[:c.udata.N])
		return c.deliver()
	})
	if err == nil {
		err = c.failed
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// runNative runs a method that is not a command of the write form, and delivers its outputs.
func (c *ioctlCall) runNative(run func() error) error {
	if err := c.run(func(*call) error { return run() }); err != nil {
		return err
	}
	return c.finish(c.deliver)
}

// infoHandles lists the handles of the objects of a type. In a zombie the list is empty, because the objects have been
// destroyed. The handles of the objects can still be destroyed. (UVERBS_HANDLER(UVERBS_METHOD_INFO_HANDLES))
func infoHandles(c *ioctlCall) error {
	object, err := c.numberUpTo(uapi.AttrInfoObjectID, math.MaxUint16)
	if err != nil {
		return err
	}
	room := c.bufferLen(uapi.AttrInfoHandlesList)
	if room == 0 || room%4 != 0 {
		return fmt.Errorf("buffer of %d bytes does not hold a list of 4-byte handles: %w", room, syscall.EINVAL)
	}
	k, ok := objectKinds[uapi.ObjectID(object)]
	if !ok {
		return fmt.Errorf("unknown object type %d: %w", object, syscall.ENOENT)
	}
	return c.runNative(func() error {
		var handles []byte
		var n uint32
		for o := range c.f.objects.all() {
			if o.res.kind() != k || o.users.Load() == exclusiveUse || c.f.contextState() == states.ContextZombie {
				continue
			}
			if len(handles) == room {
				break
			}
			handles = binary.NativeEndian.AppendUint32(handles, o.handle)
			n++
		}
		c.setOutput(uapi.AttrInfoHandlesList, handles)
		c.setOutput(uapi.AttrInfoTotalHandles, uint32Bytes(n))
		return nil
	})
}

// queryPort returns the state of a port. (UVERBS_HANDLER(UVERBS_METHOD_QUERY_PORT))
func queryPort(c *ioctlCall) error {
	port, err := c.numberUpTo(uapi.AttrQueryPortPortNum, math.MaxUint8)
	if err != nil {
		return err
	}
	return c.runNative(func() error {
		if err := c.f.checkContext(); err != nil {
			return err
		}
		a, err := c.f.dev.queryPort(int(port))
		if err != nil {
			return err
		}
		resp := uapi.QueryPortRespEx{LegacyResp: portResp(&a), ActiveSpeedEx: uint32(a.ActiveSpeed)}
		c.setOutputStruct(uapi.AttrQueryPortResp, uapi.AppendTo(nil, &resp))
		return nil
	})
}

// queryPortSpeed returns the effective speed of a port. (UVERBS_HANDLER(UVERBS_METHOD_QUERY_PORT_SPEED))
func queryPortSpeed(c *ioctlCall) error {
	port, err := c.numberUpTo(uapi.AttrQueryPortSpeedPortNum, math.MaxUint32)
	if err != nil {
		return err
	}
	return c.runNative(func() error {
		if err := c.f.checkContext(); err != nil {
			return err
		}
		speed, err := c.f.dev.ib.QueryPortSpeed(int(port))
		if err != nil {
			return err
		}
		c.setOutput(uapi.AttrQueryPortSpeedResp, uint64Bytes(speed))
		return nil
	})
}

// getContext makes the context, without an asynchronous event file.
// (UVERBS_HANDLER(UVERBS_METHOD_GET_CONTEXT))
func getContext(c *ioctlCall) (err error) {
	if c.udata.In, err = c.inputBytes(uapi.AttrUHWIn); err != nil {
		return err
	}
	c.allocDriverResponse(c.bufferLen(uapi.AttrUHWOut))
	return c.runNative(func() error {
		if err := c.f.openContext(&c.udata); err != nil {
			return err
		}
		c.commit, c.abort = c.f.commitContext, c.f.abortContext
		c.setContextOutputs(uapi.AttrGetContextNumCompVectors, uapi.AttrGetContextCoreSupport)
		c.setOutput(uapi.AttrUHWOut, c.udata.Out[:c.udata.N])
		return nil
	})
}

// queryContext returns the results of getContext to a process that has inherited the file.
// (UVERBS_HANDLER(UVERBS_METHOD_QUERY_CONTEXT))
func queryContext(c *ioctlCall) error {
	return c.runNative(func() error {
		if err := c.f.checkContext(); err != nil {
			return err
		}
		c.setContextOutputs(uapi.AttrQueryContextNumCompVectors, uapi.AttrQueryContextCoreSupport)
		return nil
	})
}

func (c *ioctlCall) setContextOutputs(vectors, support uapi.AttrID) {
	c.setOutput(vectors, uint32Bytes(uint32(c.f.dev.srv.opts.CompVectors)))
	c.setOutput(support, uint64Bytes(uint64(uapi.CoreSupportOptionalMRAccess)))
}

// queryGIDTable returns the valid GIDs of all ports. (UVERBS_HANDLER(UVERBS_METHOD_QUERY_GID_TABLE))
func queryGIDTable(c *ioctlCall) error {
	if _, err := c.flagsOf(uapi.AttrQueryGIDTableFlags, 0); err != nil {
		return err
	}
	size, err := c.numberUpTo(uapi.AttrQueryGIDTableEntrySize, math.MaxUint16)
	if err != nil {
		return err
	}
	room := c.bufferLen(uapi.AttrQueryGIDTableRespEntries)
	if size == 0 || room == 0 || room%int(size) != 0 {
		return fmt.Errorf("buffer of %d bytes does not hold a list of entries of %d bytes: %w", room, size, syscall.EINVAL)
	}
	return c.runNative(func() error {
		if err := c.f.checkContext(); err != nil {
			return err
		}
		entries, err := c.f.dev.gidTable(room / int(size))
		if err != nil {
			return err
		}
		var b []byte
		for i := range entries {
			e := uapi.AppendTo(nil, &entries[i])
			e = append(e, make([]byte, max(0, int(size)-len(e)))...)
			b = append(b, e[:size]...)
		}
		c.setOutput(uapi.AttrQueryGIDTableRespEntries, b)
		c.setOutput(uapi.AttrQueryGIDTableRespNumEntries, uint64Bytes(uint64(len(entries))))
		return nil
	})
}

// queryGIDEntry returns one GID. queryGIDEntry returns ENODATA if the entry is empty.
// (UVERBS_HANDLER(UVERBS_METHOD_QUERY_GID_ENTRY))
func queryGIDEntry(c *ioctlCall) error {
	if _, err := c.flagsOf(uapi.AttrQueryGIDEntryFlags, 0); err != nil {
		return err
	}
	port, err := c.numberUpTo(uapi.AttrQueryGIDEntryPort, math.MaxUint32)
	if err != nil {
		return err
	}
	index, err := c.numberUpTo(uapi.AttrQueryGIDEntryGIDIndex, math.MaxUint32)
	if err != nil {
		return err
	}
	return c.runNative(func() error {
		if err := c.f.checkContext(); err != nil {
			return err
		}
		if !c.f.dev.isValidPort(int(port)) {
			return fmt.Errorf("no port %d: %w", port, syscall.EINVAL)
		}
		e, err := c.f.dev.gidEntry(int(port), int(index))
		if err != nil {
			return err
		}
		c.setOutputStruct(uapi.AttrQueryGIDEntryRespEntry, uapi.AppendTo(nil, &e))
		return nil
	})
}

// asyncEventAlloc creates an asynchronous event file. The objects of a context use the first one.
// (UVERBS_HANDLER(UVERBS_METHOD_ASYNC_EVENT_ALLOC))
func asyncEventAlloc(c *ioctlCall) error {
	err := c.run(func(*call) error {
		if err := c.f.checkContext(); err != nil {
			return err
		}
		e, reader, err := c.f.events.newAsync()
		if err != nil {
			return err
		}
		c.reader, c.abort = reader, func() { c.f.events.undoNewFile(e) }
		c.resp = make([]byte, 8) // the descriptor as a signed 64-bit number, stored by install
		return nil
	})
	if err != nil {
		return err
	}
	return c.finish(func() error {
		c.setNumber(uapi.AttrAsyncEventAllocFDHandle, uint64At(c.resp))
		return c.deliver()
	})
}
