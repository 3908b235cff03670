package verb

import "verbena/uapi"

// Spec is a row of the table. A row describes an operation on a device or its objects, and all calls of the operation.
type Spec struct {
	// Name is the name of the C function without ibv_. Fault rules cannot select a verb without a name. Such a verb is
	// on the data path, or is called only by consumers in the same process.
	Name string
	// Aliases contains the names of other C functions, without ibv_, that make the same calls.
	Aliases []string
	Effect  Effect
	// Atomic verbs may not sleep, and may be called from any context, including completion handlers. (core_locking.rst)
	Atomic bool
	// Commands contains the calls in the write form. Methods contains the calls by RDMA_VERBS_IOCTL.
	Commands []Command
	Methods  []Method
	// Midlayer contains the methods of package ib for consumers in the same process, such as "PD.RegMR".
	Midlayer []string
	// Driver contains the methods by which a driver implements the verb, such as "DriverQP.PostSend". The methods
	// belong to interfaces of package ib.
	Driver []string
}

// Effect is the effect of a verb on a device and its objects. The effect determines the device states in which the verb
// works.
type Effect uint8

// The effects. The state of a device is active, error or gone. A context of a removed device is a zombie.
const (
	Makes    Effect = iota // creates or modifies an object; works only on an active device
	Reads                  // queries, polls or arms; also works on a device in the error state
	Destroys               // destroys or detaches; also works in a zombie
	Posts                  // posts a work request, which completes with a flush error on a device in the error state
	Lists                  // reads the context's own tables; also works in a zombie
)

// Command describes a command of the write form. (struct uverbs_api_write_method)
type Command struct {
	// Number is a [uapi.Command], or a [uapi.ExCommand] with CmdFlagExtended.
	Number uint32
	// Request and Response are the sizes in bytes of the core's parts. The kernel rejects a shorter request or response
	// buffer. Extended commands have no sizes, because the kernel treats missing bytes as zero.
	Request, Response int
	// Driver is true if the driver's part follows the core's part. Extended commands contain the size of the driver's
	// part.
	Driver bool
	// Answers is true if a plain request starts with the address of its response.
	Answers bool
}

// String returns the name in C without IB_USER_VERBS_ and CMD_.
func (c Command) String() string {
	if c.Number&uapi.CmdFlagExtended != 0 {
		return uapi.ExCommand(c.Number & uapi.CmdCommandMask).String()
	}
	return uapi.Command(c.Number).String()
}

// Method describes a method of RDMA_VERBS_IOCTL. (struct uverbs_method_def)
type Method struct {
	Object uapi.ObjectID
	Method uapi.MethodID
	Attrs  []Attr
}

// String returns the name in C without UVERBS_METHOD_.
func (m Method) String() string { return uapi.MethodName(m.Object, m.Method) }

// Attr returns the specification of an attribute, or nil if the method has no such attribute.
func (m *Method) Attr(id uapi.AttrID) *Attr {
	for i := range m.Attrs {
		if m.Attrs[i].ID == id {
			return &m.Attrs[i]
		}
	}
	return nil
}

// Attr describes an attribute of a method. (struct uverbs_attr_spec)
type Attr struct {
	ID   uapi.AttrID
	Kind Kind
	// Object is the type of the object to which a handle refers.
	Object uapi.ObjectID
	// Min and Max limit the length in bytes.
	Min, Max int
	// Extensible attributes may be longer than Max. Excess input must be zero. Excess output is cleared.
	Extensible bool
	// Mandatory means that the call fails without the attribute.
	Mandatory bool
}

// Kind is the kind of an attribute: its direction and the type of its data.
type Kind uint8

// The kinds of attributes.
const (
	In      Kind = iota // input from the caller; up to 8 bytes are in the attribute itself (UVERBS_ATTR_PTR_IN)
	Out                 // output to the caller (UVERBS_ATTR_PTR_OUT)
	New                 // the handle or descriptor of a new object (UVERBS_ACCESS_NEW)
	Use                 // the handle of an object (UVERBS_ATTR_IDR, UVERBS_ACCESS_READ)
	Destroy             // the handle of an object to destroy (UVERBS_ACCESS_DESTROY)
	File                // a descriptor of the caller (UVERBS_ATTR_FD)
)

// maxAttr is the maximum length of an attribute, in bytes.
const maxAttr = 1<<16 - 1

func constIn(id uapi.AttrID) Attr {
	return Attr{ID: id, Kind: In, Min: 8, Max: 8, Mandatory: true}
}

func flagsIn(id uapi.AttrID) Attr { return Attr{ID: id, Kind: In, Min: 4, Max: 8} }

func bytesIn(id uapi.AttrID, least int) Attr {
	return Attr{ID: id, Kind: In, Min: least, Max: maxAttr}
}

func numberIn(id uapi.AttrID, size int) Attr {
	return Attr{ID: id, Kind: In, Min: size, Max: size, Mandatory: true}
}

func structIn[T any](id uapi.AttrID) Attr {
	n := uapi.SizeOf[T]()
	return Attr{ID: id, Kind: In, Min: n, Max: n, Extensible: true, Mandatory: true}
}

func valueOut(id uapi.AttrID, size int) Attr {
	return Attr{ID: id, Kind: Out, Min: size, Max: size}
}

func bytesOut(id uapi.AttrID, least int) Attr {
	return Attr{ID: id, Kind: Out, Min: least, Max: maxAttr}
}

func structOut[T any](id uapi.AttrID) Attr {
	n := uapi.SizeOf[T]()
	return Attr{ID: id, Kind: Out, Min: n, Max: n, Extensible: true, Mandatory: true}
}

// responseOut returns the specification of a mandatory output attribute with the size of T.
func responseOut[T any](id uapi.AttrID) Attr { return valueOut(id, uapi.SizeOf[T]()).required() }

func newHandle(id uapi.AttrID, o uapi.ObjectID) Attr {
	return Attr{ID: id, Kind: New, Object: o, Mandatory: true}
}

func useHandle(id uapi.AttrID, o uapi.ObjectID) Attr {
	return Attr{ID: id, Kind: Use, Object: o, Mandatory: true}
}

func destroyHandle(id uapi.AttrID, o uapi.ObjectID) Attr {
	return Attr{ID: id, Kind: Destroy, Object: o, Mandatory: true}
}

func fileIn(id uapi.AttrID) Attr { return Attr{ID: id, Kind: File} }

func (s Attr) required() Attr {
	s.Mandatory = true
	return s
}

func (s Attr) optional() Attr {
	s.Mandatory = false
	return s
}

// plainCommand returns the specification of a plain command without a response.
func plainCommand[Req any](n uapi.Command) Command {
	return Command{Number: uint32(n), Request: uapi.SizeOf[Req]()}
}

// commandWithResponse returns the specification of a plain command with a response.
func commandWithResponse[Req, Resp any](n uapi.Command) Command {
	return Command{Number: uint32(n), Request: uapi.SizeOf[Req](), Response: uapi.SizeOf[Resp](), Answers: true}
}

func extendedCommand(n uapi.ExCommand) Command {
	return Command{Number: uint32(n) | uapi.CmdFlagExtended}
}

// withDriverData returns c with the driver's parts added.
func (c Command) withDriverData() Command {
	c.Driver = true
	return c
}

// withDriverAttrs returns attrs together with the attributes for the driver's parts.
func withDriverAttrs(attrs ...Attr) []Attr {
	return append(attrs, bytesIn(uapi.AttrUHWIn, 0), bytesOut(uapi.AttrUHWOut, 0))
}
