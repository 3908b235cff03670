package ucma

import (
	"maps"
	"slices"

	"verbena/uapi/ucm"
)

// VerbCall is a call of a verb of the connection manager that is about to be executed.
type VerbCall struct {
	Verb string // name of the C function; see Verbs
	PID  int    // ID of the process that opened the file
}

// OnVerb sets a function that is called before each verb is executed. If f returns an error, which must wrap a
// syscall.Errno, the verb returns that error. f may sleep, since only this verb waits. A nil f removes the
// function, which may still be running when OnVerb returns.
func (s *Server) OnVerb(f func(VerbCall) error) {
	if f == nil {
		s.onVerb.Store(nil)
		return
	}
	s.onVerb.Store(&f)
}

// verbNames maps commands to names. GET_EVENT is not a verb, because it waits and is a read of the file.
var verbNames = map[ucm.Command]string{
	ucm.CmdCreateID: "rdma_create_id", ucm.CmdDestroyID: "rdma_destroy_id", ucm.CmdBindIP: "rdma_bind_addr",
	ucm.CmdBind:      "rdma_bind_addr",
	ucm.CmdResolveIP: "rdma_resolve_addr", ucm.CmdResolveAddr: "rdma_resolve_addr",
	ucm.CmdResolveRoute: "rdma_resolve_route",
	ucm.CmdQueryRoute:   "rdma_query_route", ucm.CmdQuery: "rdma_query_route", ucm.CmdConnect: "rdma_connect",
	ucm.CmdListen: "rdma_listen",
	ucm.CmdAccept: "rdma_accept", ucm.CmdReject: "rdma_reject", ucm.CmdDisconnect: "rdma_disconnect",
	ucm.CmdInitQPAttr: "rdma_init_qp_attr", ucm.CmdSetOption: "rdma_set_option", ucm.CmdNotify: "rdma_notify",
	ucm.CmdJoinIPMcast: "rdma_join_multicast", ucm.CmdJoinMcast: "rdma_join_multicast",
	ucm.CmdLeaveMcast: "rdma_leave_multicast",
	ucm.CmdMigrateID:  "rdma_migrate_id",

	ucm.CmdResolveIBService: "rdma_resolve_addrinfo", ucm.CmdWriteCMEvent: "rdma_write_cm_event",
}

// Verbs returns the sorted names of the verbs for which OnVerb is called.
func Verbs() []string { return slices.Compact(slices.Sorted(maps.Values(verbNames))) }

func (f *File) callVerbFunc(c ucm.Command) error {
	h := f.srv.onVerb.Load()
	if h == nil || verbNames[c] == "" {
		return nil
	}
	return (*h)(VerbCall{Verb: verbNames[c], PID: f.cfg.PID})
}
