package ib

import (
	"fmt"
	"syscall"
)

// qpTransition holds the required and the optional attributes of a state transition, by service type. The attribute
// state is not included (IBA 11.2.5.2, tables 91 to 93).
type qpTransition struct {
	required map[QPType]QPAttrMask
	optional map[QPType]QPAttrMask
}

// The following service types share their masks.
var (
	managementTypes = []QPType{QPTypeSMI, QPTypeGSI}
	connectedTypes  = []QPType{QPTypeUC, QPTypeRC, QPTypeXRCInit, QPTypeXRCTgt}
	allTypes        = append([]QPType{QPTypeSMI, QPTypeGSI, QPTypeUD, QPTypeRaw, QPTypeSRD}, connectedTypes...)
)

type masksByType []struct {
	types []QPType
	mask  QPAttrMask
}

func (m masksByType) expandTypes() map[QPType]QPAttrMask {
	r := map[QPType]QPAttrMask{}
	for _, x := range m {
		for _, t := range x.types {
			r[t] |= x.mask
		}
	}
	return r
}

var qpTransitions = func() map[[2]QPState]qpTransition {
	const (
		move  = QPAttrCurState
		path  = QPAttrAltPath | QPAttrPathMigState
		toRTR = QPAttrAV | QPAttrPathMTU | QPAttrDestQPN | QPAttrRQPSN
	)
	rc, uc, ini, tgt := []QPType{QPTypeRC}, []QPType{QPTypeUC}, []QPType{QPTypeXRCInit}, []QPType{QPTypeXRCTgt}
	srd := []QPType{QPTypeSRD}               // srd_qp_state_table of efa
	ud := append([]QPType{QPTypeUD}, srd...) // with the same attributes
	initial := masksByType{
		{ud, QPAttrPKeyIndex | QPAttrPort | QPAttrQKey},
		{connectedTypes, QPAttrPKeyIndex | QPAttrPort | QPAttrAccessFlags},
		{managementTypes, QPAttrPKeyIndex | QPAttrQKey},
	}
	running := masksByType{
		{ud, move | QPAttrQKey},
		{managementTypes, move | QPAttrQKey},
		{connectedTypes, move | QPAttrAccessFlags | path},
		{append(rc, tgt...), QPAttrMinRNRTimer},
	}
	table := map[[2]QPState]struct{ required, optional masksByType }{
		{QPReset, QPInit}: {required: append(masksByType{{[]QPType{QPTypeRaw}, QPAttrPort}}, initial...)},
		{QPInit, QPInit}:  {optional: initial},
		{QPInit, QPRTR}: {
			required: masksByType{
				{connectedTypes, toRTR},
				{append(rc, tgt...), QPAttrMaxDestRdAtomic | QPAttrMinRNRTimer},
			},
			optional: masksByType{
				{ud, QPAttrPKeyIndex | QPAttrQKey},
				{managementTypes, QPAttrPKeyIndex | QPAttrQKey},
				{connectedTypes, QPAttrAltPath | QPAttrAccessFlags | QPAttrPKeyIndex},
			},
		},
		{QPRTR, QPRTS}: {
			required: masksByType{
				{append(ud, managementTypes...), QPAttrSQPSN},
				{uc, QPAttrSQPSN},
				{append(rc, ini...), QPAttrTimeout | QPAttrRetryCnt | QPAttrRNRRetry | QPAttrSQPSN | QPAttrMaxRdAtomic},
				{tgt, QPAttrTimeout | QPAttrSQPSN},
			},
			optional: append(masksByType{{[]QPType{QPTypeRaw}, QPAttrRateLimit}, {srd, QPAttrRNRRetry}}, running...),
		},
		{QPRTS, QPRTS}: {optional: append(masksByType{{[]QPType{QPTypeRaw}, QPAttrRateLimit}}, running...)},
		{QPRTS, QPSQD}: {optional: masksByType{{allTypes, QPAttrEnSQDAsyncNotify}}},
		{QPSQD, QPRTS}: {optional: running},
		{QPSQD, QPSQD}: {
			optional: masksByType{
				{append(ud, managementTypes...), QPAttrPKeyIndex | QPAttrQKey},
				{connectedTypes, QPAttrAV | path | QPAttrAccessFlags | QPAttrPKeyIndex},
				{append(rc, ini...), QPAttrPort | QPAttrTimeout | QPAttrRetryCnt | QPAttrRNRRetry | QPAttrMaxRdAtomic},
				{tgt, QPAttrPort | QPAttrTimeout},
				{append(rc, tgt...), QPAttrMaxDestRdAtomic | QPAttrMinRNRTimer},
			},
		},
		{QPSQE, QPRTS}: {
			optional: masksByType{{append(ud, managementTypes...), move | QPAttrQKey}, {uc, move | QPAttrAccessFlags}},
		},
	}
	r := map[[2]QPState]qpTransition{}
	for k, v := range table {
		r[k] = qpTransition{required: v.required.expandTypes(), optional: v.optional.expandTypes()}
	}
	return r
}()

// checkTransition returns nil if a queue pair of type t may move from state from to state to with the attributes in
// mask. Every state may move to RESET and to ERR. (ib_modify_qp_is_ok)
func checkTransition(from, to QPState, t QPType, mask QPAttrMask) error {
	if from > QPErr || to > QPErr {
		return fmt.Errorf("undefined state in %v to %v: %w", from, to, syscall.EINVAL)
	}
	if mask&QPAttrCurState != 0 && from != QPRTR && from != QPRTS && from != QPSQD && from != QPSQE {
		return fmt.Errorf("cur_qp_state must not be %v: %w", from, syscall.EINVAL)
	}
	var tr qpTransition
	if to != QPReset && to != QPErr {
		var ok bool
		if tr, ok = qpTransitions[[2]QPState{from, to}]; !ok {
			return fmt.Errorf("no transition from %v to %v: %w", from, to, syscall.EINVAL)
		}
	}
	if miss := tr.required[t] &^ mask; miss != 0 {
		return fmt.Errorf("%v to %v of a %v queue pair: required attributes %v are missing: %w", from, to, t,
			miss, syscall.EINVAL)
	}
	if extra := mask &^ (tr.required[t] | tr.optional[t] | QPAttrState); extra != 0 {
		return fmt.Errorf("%v to %v of a %v queue pair: attributes %v are not allowed: %w", from, to, t, extra,
			syscall.EINVAL)
	}
	return nil
}

// NextState returns the state of a queue pair of type t after a Modify with attr and mask in state now. NextState
// returns EINVAL if the transition does not exist or mask does not suit the transition. NextState also returns EINVAL
// if mask names CurState and attr.CurState differs from now. NextState is for a driver's Modify, which calls it under
// the lock that protects the state. NextState may not sleep. (ib_modify_qp_is_ok)
func NextState(now QPState, t QPType, attr *QPAttr, mask QPAttrMask) (QPState, error) {
	from := now
	if mask&QPAttrCurState != 0 {
		from = attr.CurState
	}
	to := from
	if mask&QPAttrState != 0 {
		to = attr.State
	}
	if err := checkTransition(from, to, t, mask); err != nil {
		return now, err
	}
	if from != now && to != QPErr && to != QPReset {
		return now, fmt.Errorf("cur_qp_state is %v, but the queue pair is in state %v: %w", from, now, syscall.EINVAL)
	}
	return to, nil
}
