package ctl

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// Protocol is the version of the control protocol. It is raised whenever a request or a response changes its meaning.
// OpStop and OpYield have the same meaning in all versions, so that a service of another one can be replaced.
const Protocol = 5

// Build names this build of the command or the service for the other end, such as "verbena v0.1.0"; it is set before
// anything is sent.
var Build string

// Understood reports whether a request means what this build takes it for.
func (r *Request) Understood() bool {
	return r.Protocol == Protocol || r.Op == OpStop || r.Op == OpYield
}

// Refuse returns the error for a request that this build does not know, or that means something else: which end is
// older, and what to do.
func (r *Request) Refuse() error {
	service := fmt.Sprintf("the running service (process %d, %s)", os.Getpid(), described(Build, Protocol))
	command := fmt.Sprintf("this command (%s)", described(r.Build, r.Protocol))
	if r.Protocol < Protocol {
		return fmt.Errorf("%s is newer than %s: use the newer verbena, or end the service with `verbena stop`: %w", service,
			command, syscall.EPROTO)
	}
	return fmt.Errorf("%s is older than %s: %s: %w", service, command, replaceService, syscall.EPROTO)
}

// replaceService is what to do about a service that is older than a command.
const replaceService = "end it with `verbena stop`, and run this again"

// described names a build.
func described(build string, protocol int) string {
	if build == "" {
		build = "of an unnamed version"
	}
	return fmt.Sprintf("%s, control protocol %d", Clip(build), protocol)
}

// Named returns the response with what a client of another version wants to know of this build.
func (r *Response) Named() *Response {
	r.Protocol, r.Build = Protocol, Build
	return r
}

// foreign reports whether a response is the refusal of a service that did not name its build yet, and is older
// therefore.
func (r *Response) foreign() bool {
	return r.Protocol == 0 && (r.Errno == syscall.EPROTO || r.Errno == syscall.EINVAL &&
		strings.HasPrefix(r.Error, "malformed request "))
}

// Request is a message of a client. Op determines which of the other fields count.
type Request struct {
	Protocol int
	Build    string `json:",omitempty"` // of the client
	Op       Op
	Link     *LinkSpec  `json:",omitempty"`
	Name     string     `json:",omitempty"` // of a device
	Attach   *Attach    `json:",omitempty"`
	Fault    *FaultRule `json:",omitempty"`
	Reset    *DevReset  `json:",omitempty"`
	Set      *LinkSet   `json:",omitempty"`
	Event    *DevEvent  `json:",omitempty"`
	ID       int        `json:",omitempty"` // of a fault rule
	Capture  *Capture   `json:",omitempty"`
	Trace    *QPTrace   `json:",omitempty"`
	Profile  *Profile   `json:",omitempty"`
}

// Op names a request.
type Op string

// Requests.
const (
	OpAttach     Op = "attach" // with the listener's descriptor; the connection lasts as long as the program
	OpOpen       Op = "open"   // the connection then stands for an open device file; see package devfile
	OpInfo       Op = "info"
	OpStop       Op = "stop"
	OpYield      Op = "yield" // ends a service that was started on demand and is not in use
	OpLinkAdd    Op = "link add"
	OpLinkDel    Op = "link del"
	OpLinkSet    Op = "link set"
	OpLinkShow   Op = "link show"
	OpResShow    Op = "res show"
	OpDevReset   Op = "dev reset"
	OpDevUnplug  Op = "dev unplug"
	OpDevPlug    Op = "dev plug"
	OpDevHang    Op = "dev hang"
	OpDevEvent   Op = "dev event"
	OpDevShow    Op = "dev show"
	OpFaultAdd   Op = "fault add"
	OpFaultShow  Op = "fault show"
	OpFaultClear Op = "fault clear"
	OpStatShow   Op = "stat show"
	OpQPShow     Op = "qp show"
	OpQPTrace    Op = "qp trace"
	OpProfile    Op = "debug pprof"
	OpCapture    Op = "capture" // with the descriptor of the socket that the file is sent to
)

// Response answers a Request. Error is empty on success; Errno then is 0.
type Response struct {
	Error    string           `json:",omitempty"`
	Errno    syscall.Errno    `json:",omitempty"`
	Protocol int              `json:",omitempty"` // of the service, with Error
	Build    string           `json:",omitempty"` // the same
	Info     *Info            `json:",omitempty"`
	Attached *Attached        `json:",omitempty"`
	Opened   *Opened          `json:",omitempty"`
	Links    []LinkInfo       `json:",omitempty"`
	Contexts []ContextInfo    `json:",omitempty"`
	Users    []UserInfo       `json:",omitempty"`
	Devs     []DevInfo        `json:",omitempty"`
	Faults   []FaultRuleState `json:",omitempty"`
	ID       int              `json:",omitempty"` // of the fault rule that was added
	Stats    []StatInfo       `json:",omitempty"`
	QPs      []QPStatusInfo   `json:",omitempty"`
	Trace    *QPTraceInfo     `json:",omitempty"`
	Profile  []byte           `json:",omitempty"`
}

// Attach describes the program that is about to start.
type Attach struct {
	Args  []string // of the program, for people to read; see CutArgs
	Trace bool     `json:",omitempty"` // the answer comes with a socket, on which the service sends a trace of its calls
}

// Attached is what the launcher needs as the program's guardian.
type Attached struct {
	Dir    string // the session's name: the names of its programs' queue files begin with it
	Helped bool   `json:",omitempty"` // the service will ask for Help, and the launcher is to stay an ancestor
	Traced bool   `json:",omitempty"` // the program is to let the service's process access its memory (PR_SET_PTRACER)
	// Trace is the trace that Attach.Trace asks for; nil from a service that does not know of it. It comes as a
	// descriptor.
	Trace *CallTrace `json:"-"`
}

// Opened describes a device file that was opened.
type Opened struct {
	Device string // such as rxe0
	Driver uint32 // enum rdma_driver_id
	ABI    int    // the version of the driver's part of the user ABI
}

// Help is a message of the service to a launcher, over the connection that stands for the program.
type Help struct {
	MemOf  int    `json:",omitempty"` // thread whose /proc/TID/mem is wanted
	Notice string `json:",omitempty"` // what the user of the program is to read; no descriptor is wanted
}

// HelpAnswer answers Help. The descriptor that was asked for comes with it, unless Error is set.
type HelpAnswer struct {
	Error string        `json:",omitempty"`
	Errno syscall.Errno `json:",omitempty"`
}

// Info describes the service.
type Info struct {
	PID      int  `json:"pid"`
	Programs int  `json:"programs"`  // attached now, and captures
	OnDemand bool `json:"on_demand"` // started by a client
}
