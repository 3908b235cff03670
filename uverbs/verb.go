package uverbs

import (
	"maps"
	"slices"
	"strings"

	"verbena/uapi"
)

// VerbCall is a call of a verb that is about to be carried out.
type VerbCall struct {
	// Verb is the name of the verb, as that of its function in C without ibv_; see Verbs.
	Verb string
	// State is the state that modify_qp asks for, such as "rtr"; empty if it asks for none, and for other verbs.
	State string
	// Device is the name of the midlayer's device, such as rxe0.
	Device string
	// PID and Process are the number and name of the process that has opened the file.
	PID     int
	Process string
}

// OnVerb has f called before a verb is carried out, when it is known to be well-formed as far as its header and attributes
// go, and nothing has been done for it. An error of f, which wraps a syscall.Errno, is the verb's. f may sleep: that verb alone
// waits. nil ends it, but f may still be running then. Without f it costs nothing.
//
// Doorbells, posting and polling are not verbs in this sense.
func (s *Server) OnVerb(f func(VerbCall) error) {
	if f == nil {
		s.onVerb.Store(nil)
		return
	}
	s.onVerb.Store(&f)
}

// verbsOfCommands are the verbs that are commands of the write form.
var verbsOfCommands = map[uapi.Command]string{
	uapi.CmdGetContext: "open_device", uapi.CmdQueryDevice: "query_device", uapi.CmdQueryPort: "query_port",
	uapi.CmdAllocPD: "alloc_pd", uapi.CmdDeallocPD: "dealloc_pd", uapi.CmdCreateAH: "create_ah", uapi.CmdDestroyAH: "destroy_ah",
	uapi.CmdRegMR: "reg_mr", uapi.CmdDeregMR: "dereg_mr", uapi.CmdReregMR: "rereg_mr",
	uapi.CmdAllocMW: "alloc_mw", uapi.CmdDeallocMW: "dealloc_mw", uapi.CmdCreateCompChannel: "create_comp_channel",
	uapi.CmdCreateCQ: "create_cq", uapi.CmdResizeCQ: "resize_cq", uapi.CmdDestroyCQ: "destroy_cq",
	uapi.CmdReqNotifyCQ: "req_notify_cq", uapi.CmdCreateQP: "create_qp", uapi.CmdQueryQP: "query_qp",
	uapi.CmdModifyQP: "modify_qp", uapi.CmdDestroyQP: "destroy_qp", uapi.CmdAttachMcast: "attach_mcast",
	uapi.CmdDetachMcast: "detach_mcast", uapi.CmdCreateSRQ: "create_srq", uapi.CmdCreateXSRQ: "create_srq",
	uapi.CmdModifySRQ: "modify_srq", uapi.CmdQuerySRQ: "query_srq", uapi.CmdDestroySRQ: "destroy_srq",
	uapi.CmdOpenXRCD: "open_xrcd", uapi.CmdCloseXRCD: "close_xrcd", uapi.CmdOpenQP: "open_qp",
}

var verbsOfExCommands = map[uapi.ExCommand]string{
	uapi.ExCmdQueryDevice: "query_device", uapi.ExCmdCreateCQ: "create_cq", uapi.ExCmdCreateQP: "create_qp", uapi.ExCmdModifyQP: "modify_qp",
}

// verbsOfMethods are the verbs that are methods of the ioctl form.
var verbsOfMethods = map[methodID]string{
	{uapi.ObjectDevice, uapi.MethodGetContext}:          "open_device",
	{uapi.ObjectDevice, uapi.MethodQueryContext}:        "import_device",
	{uapi.ObjectDevice, uapi.MethodQueryPort}:           "query_port",
	{uapi.ObjectDevice, uapi.MethodQueryGIDTable}:       "query_gid_table",
	{uapi.ObjectDevice, uapi.MethodQueryGIDEntry}:       "query_gid",
	{uapi.ObjectDevice, uapi.MethodInfoHandles}:         "info_handles",
	{uapi.ObjectAsyncEvent, uapi.MethodAsyncEventAlloc}: "alloc_async_event",

	{uapi.ObjectPD, uapi.MethodPDDestroy}:     "dealloc_pd",
	{uapi.ObjectAH, uapi.MethodAHDestroy}:     "destroy_ah",
	{uapi.ObjectMR, uapi.MethodMRDestroy}:     "dereg_mr",
	{uapi.ObjectMW, uapi.MethodMWDestroy}:     "dealloc_mw",
	{uapi.ObjectXRCD, uapi.MethodXRCDDestroy}: "close_xrcd",
	{uapi.ObjectCQ, uapi.MethodCQCreate}:      "create_cq",
	{uapi.ObjectCQ, uapi.MethodCQDestroy}:     "destroy_cq",
	{uapi.ObjectQP, uapi.MethodQPCreate}:      "create_qp",
	{uapi.ObjectQP, uapi.MethodQPDestroy}:     "destroy_qp",
	{uapi.ObjectSRQ, uapi.MethodSRQCreate}:    "create_srq",
	{uapi.ObjectSRQ, uapi.MethodSRQDestroy}:   "destroy_srq",
	{uapi.ObjectMR, uapi.MethodRegDMABufMR}:   "reg_dmabuf_mr",
	{uapi.ObjectMR, uapi.MethodAdviseMR}:      "advise_mr",
	{uapi.ObjectMR, uapi.MethodQueryMR}:       "import_mr",
	{uapi.ObjectMR, uapi.MethodRegMR}:         "reg_mr",
}

// otherNames are names of functions in C that give the same commands as others.
var otherNames = map[string]string{
	"get_context": "open_device", "query_device_ex": "query_device", "query_gid_ex": "query_gid", "create_cq_ex": "create_cq",
	"create_qp_ex": "create_qp", "create_srq_ex": "create_srq", "reg_mr_iova": "reg_mr", "reg_mr_iova2": "reg_mr",
}

func init() {
	for id, name := range verbsOfCommands {
		c := commands[id]
		c.verb = name
		commands[id] = c
	}
	for id, name := range verbsOfExCommands {
		c := exCommands[id]
		c.verb = name
		exCommands[id] = c
	}
}

// Verbs returns the names of the verbs that OnVerb is called for, sorted.
func Verbs() []string {
	names := slices.Concat(slices.Collect(maps.Values(verbsOfCommands)), slices.Collect(maps.Values(verbsOfMethods)))
	slices.Sort(names)
	return slices.Compact(names)
}

// CanonicalVerb returns the name under which OnVerb hears of a verb, which may have a second one, such as create_cq_ex. ok: there is
// such a verb.
func CanonicalVerb(name string) (verb string, ok bool) {
	if other, ok := otherNames[name]; ok {
		return other, true
	}
	return name, slices.Contains(Verbs(), name)
}

// announce calls the function of OnVerb.
func (c *call) announce() error {
	f := c.f.dev.srv.onVerb.Load()
	if f == nil || c.verb == "" {
		return nil
	}
	v := VerbCall{Verb: c.verb, Device: c.f.dev.ib.Name(), PID: c.f.proc.PID(), Process: c.f.proc.Name()}
	if v.Verb == "modify_qp" {
		if m, _ := uapi.DecodePrefix[uapi.ModifyQP](c.in); m.AttrMask&uapi.QPAttrState != 0 {
			v.State = strings.ToLower(uapi.QPState(m.QPState).String())
		}
	}
	return (*f)(v)
}
