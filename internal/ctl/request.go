package ctl

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"verbena/internal/qpinfo"
)

// ProtocolVersion is the version of the control protocol. ProtocolVersion is increased whenever a request or a response
// changes its meaning. OpStop and OpYield have the same meaning in all versions, so that a service of another version
// can be replaced.
const ProtocolVersion = 5

// BuildName names this build of the command or the service for the other end of a connection, such as "verbena v0.1.0".
// BuildName must be set before any message is sent.
var BuildName string

// Understood reports whether a request has the meaning that this build assumes.
func (r *Request) Understood() bool {
	return r.Protocol == ProtocolVersion || r.Op == OpStop || r.Op == OpYield
}

// NewVersionError returns the error for a request of another version. The error names the older end and the
// remedy.
func (r *Request) NewVersionError() error {
	service := fmt.Sprintf("the running service (process %d, %s)", os.Getpid(), describeBuild(BuildName, ProtocolVersion))
	command := fmt.Sprintf("this command (%s)", describeBuild(r.Build, r.Protocol))
	if r.Protocol < ProtocolVersion {
		return fmt.Errorf("%s is newer than %s: use the newer verbena, or end the service with `verbena stop`: %w", service,
			command, syscall.EPROTO)
	}
	return fmt.Errorf("%s is older than %s: %s: %w", service, command, replaceServiceAdvice, syscall.EPROTO)
}

// replaceServiceAdvice is the remedy for a service that is older than a command.
const replaceServiceAdvice = "end it with `verbena stop`, and run this again"

// describeBuild returns the text for a build.
func describeBuild(build string, protocol int) string {
	if build == "" {
		build = "of an unnamed version"
	}
	return fmt.Sprintf("%s, control protocol %d", ClipText(build), protocol)
}

// WithBuild returns the response with the version and build of this service, for a client of another version.
func (r *Response) WithBuild() *Response {
	r.Protocol, r.Build = ProtocolVersion, BuildName
	return r
}

// isOldRefusal reports whether a response is the refusal of an older service, which does not name its build.
func (r *Response) isOldRefusal() bool {
	return r.Protocol == 0 && (r.Errno == syscall.EPROTO || r.Errno == syscall.EINVAL &&
		strings.HasPrefix(r.Error, "malformed request "))
}

// Request is a message of a client. Op determines which of the other fields are used.
type Request struct {
	Protocol int
	Build    string `json:",omitempty"` // build of the client
	Op       Op
	Link     *LinkSpec     `json:",omitempty"`
	Name     string        `json:",omitempty"` // name of a device
	Attach   *Attach       `json:",omitempty"`
	Fault    *FaultRule    `json:",omitempty"`
	Reset    *DevReset     `json:",omitempty"`
	Set      *LinkSet      `json:",omitempty"`
	Event    *DevEvent     `json:",omitempty"`
	ID       int           `json:",omitempty"` // number of a fault rule
	Capture  *Capture      `json:",omitempty"`
	Trace    *QPTrace      `json:",omitempty"`
	Profile  *Profile      `json:",omitempty"`
	Explain  *Explain      `json:",omitempty"`
	Requests *RequestTrace `json:",omitempty"`
	Weak     *Weak         `json:",omitempty"` // Choices is not used
}

// Op is the name of a request.
type Op string

// The requests.
const (
	OpAttach     Op = "attach" // sent with the listener's descriptor; the connection lasts as long as the program
	OpOpen       Op = "open"   // the connection then represents an open device file, as described in package devfile
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
	OpExplain    Op = "explain"
	OpProfile    Op = "debug pprof"
	OpCapture    Op = "capture"       // sent with the descriptor of the socket for the file
	OpRequests   Op = "request trace" // the trace lasts as long as the connection
	// OpDecisions makes memory for the decisions of weak devices, for an OpAttach of the same connection.
	OpDecisions Op = "weak decisions"
	// OpFaultDecisions begins to record, or to replay, the random decisions of fault rules and shapes of links in the
	// memory of OpDecisions of the same connection, until its end (Request.Weak).
	OpFaultDecisions Op = "fault decisions"
)

// Response answers a Request. On success Error is empty and Errno is 0.
type Response struct {
	Error    string           `json:",omitempty"`
	Errno    syscall.Errno    `json:",omitempty"`
	Protocol int              `json:",omitempty"` // version of the service, if Error is set
	Build    string           `json:",omitempty"` // build of the service, if Error is set
	Info     *ServiceInfo     `json:",omitempty"`
	Attached *AttachResult    `json:",omitempty"`
	Opened   *OpenResult      `json:",omitempty"`
	Links    []LinkInfo       `json:",omitempty"`
	Contexts []ContextInfo    `json:",omitempty"`
	Users    []UserInfo       `json:",omitempty"`
	Devs     []DevInfo        `json:",omitempty"`
	Faults   []FaultRuleState `json:",omitempty"`
	ID       int              `json:",omitempty"` // number of the added fault rule
	Stats    []StatInfo       `json:",omitempty"`
	QPs      []QPStatusInfo   `json:",omitempty"`
	Trace    *QPTraceInfo     `json:",omitempty"`
	Profile  []byte           `json:",omitempty"`
	Causes   []qpinfo.Cause   `json:",omitempty"`
}

// Attach describes a program that is about to start.
type Attach struct {
	Args []string // arguments of the program for display, shortened by TruncateArgs
	// The answer comes with a socket, on which the service sends a trace of the program's calls.
	Trace bool `json:",omitempty"`
	// The answer comes with the same socket. At the end of the program, the service sends the causes of its failures
	// on the socket, as lines that begin with CausePrefix.
	Explain bool `json:",omitempty"`
	// The devices make the choices of package ib/weak, see docs/weak.md.
	Weak *Weak `json:",omitempty"`
	// The service checks the program's use of verbs, see docs/sanitizer.md. The answer comes with the same socket as for
	// Trace. The service sends each violation on the socket, as lines of JSON (SanitizerReport) after ReportPrefix.
	Sanitize *Sanitize `json:",omitempty"`
}

// Sanitize selects the rules of the sanitizer.
type Sanitize struct {
	Rules []string `json:",omitempty"` // as for check.ParseProgramRules
}

// Weak selects the choices of package ib/weak.
type Weak struct {
	Seed    uint64
	Choices []string `json:",omitempty"` // names; none: all that suit programs
	// Record adds the decisions of the devices to the memory of the connection (OpDecisions).
	Record bool `json:",omitempty"`
	// Replay makes the devices take the decisions of that memory.
	Replay bool `json:",omitempty"`
}

// ReportPrefix begins the lines of a trace that contain a violation found by the sanitizer.
const ReportPrefix = "sanitizer: "

// LostReportsPrefix begins a line with the number of reports that were lost, because the launcher did not read them.
const LostReportsPrefix = "sanitizer lost: "

// SanitizerReport is a violation of a rule by a program.
type SanitizerReport struct {
	Rule     string            `json:"rule"`
	What     string            `json:"what"`
	Program  string            `json:"program"`
	PID      int               `json:"pid"`
	Device   string            `json:"device"`
	Time     time.Time         `json:"time"`
	Requests []ReportedRequest `json:"requests,omitempty"` // the violating request is first
	Memory   *ReportedMemory   `json:"memory,omitempty"`
	// Count is 1. At the end of the program, each repeated violation is sent again, with the number of occurrences.
	Count uint64 `json:"count"`
}

// ReportedRequest is a work request of a SanitizerReport.
type ReportedRequest struct {
	QPN    uint32    `json:"qp,omitempty"`
	Peer   uint32    `json:"peer,omitempty"`
	Opcode string    `json:"opcode,omitempty"`
	ID     uint64    `json:"wr_id"`
	Index  uint64    `json:"index"`
	Length uint64    `json:"length"`
	Posted time.Time `json:"posted,omitzero"`
}

// ReportedMemory is changed memory of a SanitizerReport.
type ReportedMemory struct {
	Element int    `json:"element"` // index in the list of the request
	Addr    uint64 `json:"address"`
	Length  uint64 `json:"length"`
	Offset  uint64 `json:"offset"` // offset of the first changed byte
	Changed int    `json:"changed"`
	Before  []byte `json:"before"` // from Offset on
	After   []byte `json:"after"`
}

// CausePrefix begins the lines of a trace that explain the failures of a program that has ended.
const CausePrefix = "explain: "

// AttachResult is the information for the launcher as the program's guardian.
type AttachResult struct {
	Dir    string // name of the session, which is the prefix of the names of its programs' queue files
	Helped bool   `json:",omitempty"` // the service will send Help, and the launcher must stay an ancestor
	Weak   bool   `json:",omitempty"` // the service has understood Attach.Weak
	// Sanitize reports that the service has understood Attach.Sanitize.
	Sanitize bool `json:",omitempty"`
	Traced   bool `json:",omitempty"` // the program must allow the service's process to access its memory (PR_SET_PTRACER)
	// Trace is the trace requested by Attach.Trace, or nil from a service without traces. Trace travels as a
	// descriptor.
	Trace *CallTrace `json:"-"`
}

// OpenResult describes an opened device file.
type OpenResult struct {
	Device string // such as rxe0
	Driver uint32 // enum rdma_driver_id
	ABI    int    // version of the driver's part of the user ABI
}

// HelpRequest is a request of the service to a launcher, over the connection that represents the program.
type HelpRequest struct {
	MemOf  int    `json:",omitempty"` // thread of the requested /proc/TID/mem
	Notice string `json:",omitempty"` // text for the user of the program; then no descriptor is requested
}

// HelpAnswer answers HelpRequest. The requested descriptor comes with the answer, unless Error is set.
type HelpAnswer struct {
	Error string        `json:",omitempty"`
	Errno syscall.Errno `json:",omitempty"`
}

// ServiceInfo describes the service.
type ServiceInfo struct {
	PID      int  `json:"pid"`
	Programs int  `json:"programs"`  // number of attached programs and captures
	OnDemand bool `json:"on_demand"` // a client started the service
	// Web is the address of the page of `verbena serve --web`, with its token, for clients that may manage the service.
	Web string `json:"web,omitempty"`
}
