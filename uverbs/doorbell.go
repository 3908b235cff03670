package uverbs

import (
	"sync"

	"verbena/ib"
	"verbena/ib/user"
	"verbena/uapi"
)

// doorbells are the queue pairs of a context whose send queues are shared with the program: it posts into them
// without a call and then rings. Ringing takes mu for reading, and allocates nothing.
type doorbells struct {
	mu       sync.RWMutex
	list     []*qpObject
	byHandle map[uint32]*qpObject
}

// maxScan is up to how many queue pairs ringPosted looks at each of them, which costs less than to read from the
// program's memory which one is meant.
const maxScan = 8

// add makes a queue pair known. One without a shared queue is ignored.
func (d *doorbells) add(qp *qpObject) {
	if qp.user == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byHandle == nil {
		d.byHandle = map[uint32]*qpObject{}
	}
	qp.bell = len(d.list)
	d.list = append(d.list, qp)
	d.byHandle[qp.handle] = qp
}

// remove returns when the queue pair is not being rung, and will not be any more.
func (d *doorbells) remove(qp *qpObject) {
	if qp.user == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byHandle[qp.handle] != qp {
		return
	}
	delete(d.byHandle, qp.handle)
	last := len(d.list) - 1
	d.list[qp.bell] = d.list[last]
	d.list[qp.bell].bell = qp.bell
	d.list[last] = nil
	d.list = d.list[:last]
}

// silence forgets all queue pairs: it returns when none is being rung, and none will be any more.
func (d *doorbells) silence() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.list, d.byHandle = nil, nil
}

// holds are for doorbells, which allocate nothing.
var holds = sync.Pool{New: func() any { return new(ib.Hold) }}

// hold has the callbacks that come due run by this thread, when it calls runCallbacks.
func (f *File) hold() *ib.Hold {
	h := holds.Get().(*ib.Hold)
	user.HoldCallbacks(f.dev.ib, h)
	return h
}

// runCallbacks ends a hold, if there is one.
func runCallbacks(h *ib.Hold) {
	if h != nil {
		h.Run()
		holds.Put(h)
	}
}

// ringPosted rings for each queue pair that has something posted, and reports whether there was one.
func (f *File) ringPosted() (rang bool) {
	d := &f.bells
	var h *ib.Hold
	defer func() { runCallbacks(h) }()
	if f.state.Load() != contextLive || !d.mu.TryRLock() {
		return false // the command itself is refused, or may wait
	}
	defer d.mu.RUnlock()
	if len(d.list) > maxScan {
		return false
	}
	for _, qp := range d.list {
		if !qp.user.Posted() {
			continue
		}
		if h == nil {
			h = f.hold()
		}
		qp.user.Doorbell(h)
	}
	return h != nil
}

// ringHandle rings as the doorbell command in b says. It reports false when b is anything else, or wrong, or the
// queue pair cannot send.
func (f *File) ringHandle(b []byte) (rang bool) {
	hdr, _ := uapi.Decode[uapi.CmdHdr](b)
	req, ok := uapi.Decode[uapi.PostSend](b[cmdHdrSize:])
	if !ok || !isDoorbell(hdr) || req.WRCount != 0 || req.SGECount != 0 {
		return false
	}
	var h *ib.Hold
	defer func() { runCallbacks(h) }()
	if f.state.Load() != contextLive || !f.bells.mu.TryRLock() {
		return false
	}
	defer f.bells.mu.RUnlock()
	qp := f.bells.byHandle[req.QPHandle]
	if qp == nil || qp.State() < ib.QPRTS {
		return false
	}
	h = f.hold()
	qp.user.Doorbell(h)
	return true
}

// isDoorbell tells the command that announces send work requests in a shared queue: POST_SEND of none.
func isDoorbell(hdr uapi.CmdHdr) bool {
	return uapi.Command(hdr.Command) == uapi.CmdPostSend && hdr.InWords*4 == doorbellSize && hdr.OutWords > 0
}
