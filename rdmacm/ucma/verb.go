package ucma

import (
	"maps"
	"slices"

	"verbena/uapi/ucm"
)

// VerbCall is a call of a verb of the connection manager that is about to be carried out.
type VerbCall struct {
	Verb string // the name of the function in C; see Verbs
	PID  int    // of the process that has opened the file
}

// OnVerb has f called before a verb is carried out, when nothing has been done for it. An error of f, which wraps a
// syscall.Errno, is the verb's. f may sleep: that verb alone waits. nil ends it, but f may still be running then.
func (s *Server) OnVerb(f func(VerbCall) error) {
	if f == nil {
		s.onVerb.Store(nil)
		return
	}
	s.onVerb.Store(&f)
}

// verbs are the names of the commands. GET_EVENT is none: it waits, and is not called but read from the file.
var verbs = map[ucm.Command]string{
	ucm.CmdCreateID: "rdma_create_id", ucm.CmdDestroyID: "rdma_destroy_id", ucm.CmdBindIP: "rdma_bind_addr", ucm.CmdBind: "rdma_bind_addr",
	ucm.CmdResolveIP: "rdma_resolve_addr", ucm.CmdResolveAddr: "rdma_resolve_addr", ucm.CmdResolveRoute: "rdma_resolve_route",
	ucm.CmdQueryRoute: "rdma_query_route", ucm.CmdQuery: "rdma_query_route", ucm.CmdConnect: "rdma_connect", ucm.CmdListen: "rdma_listen",
	ucm.CmdAccept: "rdma_accept", ucm.CmdReject: "rdma_reject", ucm.CmdDisconnect: "rdma_disconnect",
	ucm.CmdInitQPAttr: "rdma_init_qp_attr", ucm.CmdSetOption: "rdma_set_option", ucm.CmdNotify: "rdma_notify",
	ucm.CmdJoinIPMcast: "rdma_join_multicast", ucm.CmdJoinMcast: "rdma_join_multicast", ucm.CmdLeaveMcast: "rdma_leave_multicast",
	ucm.CmdMigrateID: "rdma_migrate_id",
}

// Verbs returns the names of the verbs that OnVerb is called for, sorted.
func Verbs() []string { return slices.Compact(slices.Sorted(maps.Values(verbs))) }

func (f *File) announce(c ucm.Command) error {
	h := f.srv.onVerb.Load()
	if h == nil || verbs[c] == "" {
		return nil
	}
	return (*h)(VerbCall{Verb: verbs[c], PID: f.cfg.PID})
}
