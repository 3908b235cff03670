package vet

import (
	"go/constant"
	"go/token"

	"golang.org/x/tools/go/ssa"
)

// post records the regions that a post invalidates, and the memory that it sends.
func (fr *lifeFrame) post(st lifeState, args []ssa.Value, cause *ssa.Call, at ssa.Instruction) {
	for _, wr := range workRequests(args[0]) {
		w := fr.describe(wr)
		if w.invalidates != "" {
			st[lifeKey{lifeInvalid, w.invalidates}] = lifeFact{call: cause, pos: fr.where(at)}
		}
		if w.handle != "" {
			st[lifeKey{lifeAimed, w.handle}] = lifeFact{call: cause, pos: fr.where(at)}
		}
		if w.sends != "" {
			st[lifeKey{lifeSent, w.sends}] = lifeFact{call: cause, pos: fr.where(at), from: w.from, until: w.until}
		}
	}
}

// workRequests returns the addresses of the work requests in an argument: a struct, its address, or a list.
func workRequests(v ssa.Value) (list []ssa.Value) {
	switch x := v.(type) {
	case *ssa.UnOp:
		if a, ok := x.X.(*ssa.Alloc); ok && x.Op == token.MUL {
			return []ssa.Value{a}
		}
	case *ssa.Alloc:
		return []ssa.Value{x}
	case *ssa.Slice:
		a, ok := x.X.(*ssa.Alloc)
		if !ok {
			return nil
		}
		for _, r := range *a.Referrers() {
			e, ok := r.(*ssa.IndexAddr)
			if !ok {
				continue
			}
			list = append(list, e)
			for _, s := range *e.Referrers() {
				if s, ok := s.(*ssa.Store); ok && s.Addr == e {
					list = append(list, workRequests(s.Val)...)
				}
			}
		}
	}
	return list
}

type describedWR struct {
	invalidates string
	sends       string
	handle      string // the address handle of a datagram
	from, until int64
}

// fieldStores returns the values that are stored in the fields of a struct, by the name of the field.
func fieldStores(addr ssa.Value) map[string]ssa.Value {
	found := map[string]ssa.Value{}
	for _, r := range *addr.Referrers() {
		a, ok := r.(*ssa.FieldAddr)
		if !ok {
			continue
		}
		for _, s := range *a.Referrers() {
			if s, ok := s.(*ssa.Store); ok && s.Addr == a {
				found[fieldVar(a.X.Type(), a.Field).Name()] = s.Val
			}
		}
	}
	return found
}

// describe returns the region that a work request invalidates or from whose memory it sends.
func (fr *lifeFrame) describe(addr ssa.Value) (w describedWR) {
	fields := fieldStores(addr)
	for _, to := range workRequests(fields["To"]) {
		if v := fieldStores(to)["AH"]; v != nil {
			w.handle = fr.pathOf(v)
		}
	}
	key := fields["InvalidateRKey"]
	if key == nil {
		key = fields["InvalidateKey"]
	}
	if mr := methodCall(key, "RKey"); mr != nil && fr.l.localInv != nil {
		if op, ok := fields["Opcode"].(*ssa.Const); ok && constant.Compare(op.Value, token.EQL, fr.l.localInv.Val()) {
			w.invalidates = fr.pathOf(mr)
		}
	}
	if fields["Inline"] != nil {
		return w
	}
	if fields["Flags"] != nil {
		if c, ok := fields["Flags"].(*ssa.Const); !ok || fr.l.inline == nil || constant.Sign(constant.BinaryOp(
			constant.ToInt(c.Value), token.AND, constant.ToInt(fr.l.inline.Val()))) != 0 {
			return w
		}
	}
	switch op, ok := fields["Opcode"].(*ssa.Const); {
	case fields["Opcode"] != nil && !ok, ok && !fr.l.isSend(op):
		return w
	}
	for _, name := range []string{"SGList", "Local", "List"} {
		v := fields[name]
		if v == nil {
			continue
		}
		if m := methodCall(v, "SGE"); m != nil {
			args := v.(*ssa.Call).Common().Args
			from, ok1 := constInt(args[1])
			n, ok2 := constInt(args[2])
			if ok1 {
				w.sends, w.from, w.until = fr.pathOf(m), from, -1
				if ok2 {
					w.until = from + n
				}
			}
			return w
		}
		list := workRequests(v)
		if len(list) == 0 || len(list) > 2 {
			return w
		}
		sge := fieldStores(list[len(list)-1])
		mr := methodCall(sge["LKey"], "LKey")
		from, ok := int64(0), false
		if b, isSum := sge["Addr"].(*ssa.BinOp); isSum && b.Op == token.ADD && methodCall(b.X, "Addr") != nil {
			from, ok = constInt(b.Y)
		} else {
			ok = methodCall(sge["Addr"], "Addr") != nil
		}
		if mr == nil || !ok {
			return w
		}
		w.sends, w.from, w.until = fr.pathOf(mr), from, -1
		if n, ok := constInt(sge["Length"]); ok {
			w.until = from + n
		}
	}
	return w
}

// isSend reports whether an opcode reads the memory of the sender.
func (l *lifeCheck) isSend(op *ssa.Const) bool {
	for _, name := range []string{"WRSend", "WRSendWithImm", "WRSendWithInv", "WRRDMAWrite", "WRRDMAWriteWithImm"} {
		if c := l.p.ibConst(name); c != nil && op.Value != nil && constant.Compare(op.Value, token.EQL, c.Val()) {
			return true
		}
	}
	return false
}

// methodCall returns the receiver of a call of an object's method, or nil.
func methodCall(v ssa.Value, name string) ssa.Value {
	c, ok := v.(*ssa.Call)
	if !ok || c.Common().StaticCallee() == nil || c.Common().StaticCallee().Name() != name || len(c.Common().Args) == 0 {
		return nil
	}
	if n := namedOf(c.Common().Args[0].Type()); n == nil || n.Obj().Name() != "MR" {
		return nil
	}
	return c.Common().Args[0]
}

func constInt(v ssa.Value) (int64, bool) {
	c, ok := v.(*ssa.Const)
	if !ok || c.Value == nil || c.Value.Kind() != constant.Int {
		return 0, false
	}
	return c.Int64(), true
}

// write applies a store to an element of memory.
func (fr *lifeFrame) write(st lifeState, addr ssa.Value, at ssa.Instruction) {
	if e, ok := addr.(*ssa.IndexAddr); ok {
		if i, ok := constInt(e.Index); ok {
			fr.writeAt(st, e.X, i, at)
		}
	}
}

// writeSlice applies a write to the beginning of a slice.
func (fr *lifeFrame) writeSlice(st lifeState, v ssa.Value, at ssa.Instruction) {
	fr.writeAt(st, v, 0, at)
}

// unsliced returns the value of which a value is a part, and the offset of the part.
func unsliced(v ssa.Value) (whole ssa.Value, offset int64, ok bool) {
	for {
		s, ok := v.(*ssa.Slice)
		if !ok {
			return v, offset, true
		}
		if s.Low != nil {
			n, ok := constInt(s.Low)
			if !ok {
				return nil, 0, false
			}
			offset += n
		}
		v = s.X
	}
}

// writeAt reports a write to memory that a posted request sends.
func (fr *lifeFrame) writeAt(st lifeState, v ssa.Value, offset int64, at ssa.Instruction) {
	if !fr.hasPending(st) {
		return
	}
	v, n, ok := unsliced(v)
	if !ok {
		return
	}
	offset += n
	mr := ""
	if m := methodCall(v, "Bytes"); m != nil {
		mr = fr.pathOf(m)
	} else if path := fr.pathOf(v); path != "" {
		if mr = fr.l.regions[path]; mr == "" && fr.l.memory[fieldOf(v)] != nil {
			mr, _ = fr.sibling(path, fieldOf(v), fr.l.memory[fieldOf(v)], v)
		}
	}
	x, ok := st[lifeKey{lifeSent, mr}]
	if mr == "" || !ok || x.isNil || offset < x.from || x.until < 0 && offset != x.from ||
		x.until >= 0 && offset >= x.until ||
		!fr.isUnguarded(at.Block()) {
		return
	}
	fr.report(Life, at, x, "changes memory that a posted request sends, before the request has completed", "posts the request")
}
