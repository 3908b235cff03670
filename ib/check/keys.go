package check

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"verbena/ib"
)

// ProgramGroup is a set of programs, such as the device files of one command. The report of a program may name keys
// of the others. A nil group is empty.
type ProgramGroup struct {
	mu   sync.Mutex // a leaf
	list []*Program
}

func (g *ProgramGroup) add(p *Program) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.list = append(g.list, p)
}

func (g *ProgramGroup) remove(p *Program) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.list = slices.DeleteFunc(g.list, func(x *Program) bool { return x == p })
}

// others returns the programs of the group except p.
func (g *ProgramGroup) others(p *Program) []*Program {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(g.list), func(x *Program) bool { return x == p })
}

// userRegion describes a region of a program.
type userRegion struct {
	domain     any
	access     ib.AccessFlags
	lkey, rkey uint32
	iova, n    uint64
	known      bool // iova and n are valid
	lifetime
}

// lifetime describes the end of an object.
type lifetime struct {
	endedBy string    // "" while the object exists
	ended   time.Time // valid with endedBy
}

// String is empty while the object exists.
func (l *lifetime) String() string {
	if l.endedBy == "" {
		return ""
	}
	return fmt.Sprintf(", which %s ended %v before", l.endedBy, time.Since(l.ended).Round(time.Microsecond))
}

// The numbers of ended regions and windows, and of keys of a window, that a program's checks remember.
const (
	maxEndedKeys    = 4096
	maxEndedWindows = 256
	maxWindowKeys   = 16
)

// UserMW is the checked state of a memory window of a program.
type UserMW struct {
	p    *Program
	mw   *ib.MW
	keys []uint32 // keys since the allocation
	lifetime
}

// AddMW adds a memory window with its key.
func (p *Program) AddMW(mw *ib.MW) *UserMW {
	w := &UserMW{p: p, mw: mw, keys: []uint32{mw.RKey()}}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.windows = append(p.windows, w)
	return w
}

// recordBind records the key of a posted bind.
func (p *Program) recordBind(b *ib.BindMW) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.windows, func(w *UserMW) bool { return w.mw == b.MW && w.endedBy == "" })
	if i < 0 {
		return
	}
	w := p.windows[i]
	if w.keys = append(w.keys, b.RKey); len(w.keys) > maxWindowKeys {
		w.keys = w.keys[1:]
	}
}

// Destroyed records the end of the window.
func (w *UserMW) Destroyed() {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	w.lifetime = lifetime{"ibv_dealloc_mw", time.Now()}
	n := 0
	for _, x := range w.p.windows {
		if x.endedBy != "" {
			n++
		}
	}
	if n > maxEndedWindows {
		i := slices.IndexFunc(w.p.windows, func(x *UserMW) bool { return x.endedBy != "" })
		w.p.windows = slices.Delete(w.p.windows, i, i+1)
	}
}

// checkSendKeys checks the local keys of a program's send.
func (w *workTracker) checkSendKeys(r *trackedRequest, wr *ib.SendWR) {
	p := w.o.k.program
	if p == nil || wr.Flags&ib.SendInline != 0 || w.isInErr() {
		return
	}
	switch wr.Opcode {
	case ib.WRRDMARead, ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAdd:
		w.checkTargetKeys(r, wr.SGList)
	case ib.WRSend, ib.WRSendWithImm, ib.WRSendWithInv, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm:
		w.checkKeys(r, wr.SGList, 0)
	case ib.WRBindMW:
		if wr.Bind != nil {
			p.recordBind(wr.Bind)
		}
	}
}

// checkTargetKeys checks the local keys of memory that a program's request changes.
func (w *workTracker) checkTargetKeys(r *trackedRequest, list []ib.SGE) {
	if w.o.k.program == nil || w.isInErr() {
		return
	}
	w.recordTargets(r, list)
	w.checkKeys(r, list, ib.AccessLocalWrite)
}

// recordTargets retains the elements of memory that a program's request changes.
func (w *workTracker) recordTargets(r *trackedRequest, list []ib.SGE) {
	if w.o.k.program != nil {
		r.list = slices.Clone(list)
		w.o.k.program.addImages(w.o, r)
	}
}

// checkKeys reports the first element that the device will refuse.
func (w *workTracker) checkKeys(r *trackedRequest, list []ib.SGE, right ib.AccessFlags) {
	p := w.o.k.program
	for i, s := range list {
		if s.Length == 0 {
			continue
		}
		if rule, what := p.judgeKey(regionKey{w.o.dev, s.LKey}, &s, w.domain, right); rule != 0 {
			p.k.report(Violation{Rule: rule, What: fmt.Sprintf("sg_list[%d] %s", i, what), Requests: describe(r)}, w.o.dev, nil)
			return
		}
	}
}

// judgeKey returns the rule that an element violates, or 0, and a predicate for the element.
func (p *Program) judgeKey(key regionKey, s *ib.SGE, domain any, right ib.AccessFlags) (rule Rule, what string) {
	if rule, what, known := p.judgeOwnKey(key, s, domain, right); known {
		return rule, what
	}
	for _, o := range p.cfg.Group.others(p) {
		of := o.describeKey(s.LKey)
		if of == "" {
			continue
		}
		if o.cfg.PID == p.cfg.PID {
			return RuleKeyDomain, fmt.Sprintf("has %s of another device file of the process", of)
		}
		return RuleKeyDomain, fmt.Sprintf("has %s of process %d", of, o.cfg.PID)
	}
	return RuleKeyUnknown, fmt.Sprintf("has the local key %#x, which no region has", s.LKey)
}

// judgeOwnKey is judgeKey for the keys of the program itself. known is false for other keys.
func (p *Program) judgeOwnKey(key regionKey, s *ib.SGE, domain any, right ib.AccessFlags) (rule Rule, what string,
	known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	u := p.keys[key]
	switch {
	case u == nil:
		what = p.describeRemoteKey(s.LKey)
		return RuleKeyKind, "has " + what, what != ""
	case u.endedBy != "":
		return RuleKeyEnded, fmt.Sprintf("has the local key %#x%v", s.LKey, &u.lifetime), true
	case u.domain != domain:
		return RuleKeyDomain, fmt.Sprintf("has the local key %#x of a region of another protection domain", s.LKey), true
	case u.known && (s.Addr < u.iova || uint64(s.Length) > u.n || s.Addr-u.iova > u.n-uint64(s.Length)):
		return RuleKeyRange, fmt.Sprintf("has %d bytes at %#x, and exceeds its region of %d bytes at %#x", s.Length,
			s.Addr, u.n, u.iova), true
	case right&^u.access != 0:
		return RuleKeyRight, fmt.Sprintf("names memory of a region without IBV_ACCESS_LOCAL_WRITE (local key %#x), to which "+
			"the device is to store", s.LKey), true
	}
	return 0, "", true
}

// describeKey describes a key of the program, or returns "".
func (p *Program) describeKey(key uint32) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, u := range p.keys {
		if u.lkey == key {
			return fmt.Sprintf("the local key %#x%v", key, &u.lifetime)
		}
	}
	return p.describeRemoteKey(key)
}

// describeRemoteKey describes a remote key of the program, or returns "". Keys of present objects come first.
//
//verbena:held p.mu
func (p *Program) describeRemoteKey(key uint32) (what string) {
	for _, u := range p.keys {
		if u.rkey != key {
			continue
		}
		if u.endedBy == "" {
			return fmt.Sprintf("%#x, the remote key of a region whose local key is %#x", key, u.lkey)
		}
		what = fmt.Sprintf("%#x, the remote key of a region%v", key, &u.lifetime)
	}
	for _, w := range slices.Backward(p.windows) {
		switch now := w.mw.RKey(); {
		case !slices.Contains(w.keys, key) && (now != key || w.endedBy != ""):
		case w.endedBy != "":
			return fmt.Sprintf("%#x, the key of a memory window%v", key, &w.lifetime)
		case now == key:
			return fmt.Sprintf("%#x, the key of a memory window", key)
		default:
			return fmt.Sprintf("%#x, an earlier key of a memory window, whose key is now %#x", key, now)
		}
	}
	return what
}
