package ib

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// attrNames are the attributes by the names of IBA 11.2.5.2, shortened.
var attrNames = map[string]QPAttrMask{
	"cur": QPAttrCurState, "notify": QPAttrEnSQDAsyncNotify, "access": QPAttrAccessFlags, "pkey": QPAttrPKeyIndex,
	"port": QPAttrPort, "qkey": QPAttrQKey, "av": QPAttrAV, "mtu": QPAttrPathMTU, "timeout": QPAttrTimeout,
	"retry": QPAttrRetryCnt, "rnr_retry": QPAttrRNRRetry, "rq_psn": QPAttrRQPSN, "rd_atom": QPAttrMaxRdAtomic,
	"alt": QPAttrAltPath, "rnr_timer": QPAttrMinRNRTimer, "sq_psn": QPAttrSQPSN, "dest_rd_atom": QPAttrMaxDestRdAtomic,
	"mig": QPAttrPathMigState, "cap": QPAttrCap, "dest_qpn": QPAttrDestQPN, "rate": QPAttrRateLimit,
}

func parseAttrs(t *testing.T, s string) (m QPAttrMask) {
	t.Helper()
	for _, name := range strings.Fields(s) {
		bit, ok := attrNames[name]
		if !ok {
			t.Fatalf("no attribute %q", name)
		}
		m |= bit
	}
	return m
}

type stateRow struct {
	from, to           QPState
	types              string
	required, optional string
}

// The table of the specification: what each step requires and allows, by service.
var stateRows = []stateRow{
	{QPReset, QPInit, "UD", "pkey port qkey", ""},
	{QPReset, QPInit, "SMI GSI", "pkey qkey", ""},
	{QPReset, QPInit, "RC UC XRC_INI XRC_TGT", "pkey port access", ""},
	{QPReset, QPInit, "RAW_PACKET", "port", ""},

	{QPInit, QPInit, "UD", "", "pkey port qkey"},
	{QPInit, QPInit, "SMI GSI", "", "pkey qkey"},
	{QPInit, QPInit, "RC UC XRC_INI XRC_TGT", "", "pkey port access"},
	{QPInit, QPInit, "RAW_PACKET", "", ""},

	{QPInit, QPRTR, "UD SMI GSI", "", "pkey qkey"},
	{QPInit, QPRTR, "UC XRC_INI", "av mtu dest_qpn rq_psn", "alt access pkey"},
	{QPInit, QPRTR, "RC XRC_TGT", "av mtu dest_qpn rq_psn dest_rd_atom rnr_timer", "alt access pkey"},
	{QPInit, QPRTR, "RAW_PACKET", "", ""},

	{QPRTR, QPRTS, "UD SMI GSI", "sq_psn", "cur qkey"},
	{QPRTR, QPRTS, "UC", "sq_psn", "cur access alt mig"},
	{QPRTR, QPRTS, "RC", "timeout retry rnr_retry sq_psn rd_atom", "cur access alt mig rnr_timer"},
	{QPRTR, QPRTS, "XRC_INI", "timeout retry rnr_retry sq_psn rd_atom", "cur access alt mig"},
	{QPRTR, QPRTS, "XRC_TGT", "timeout sq_psn", "cur access alt mig rnr_timer"},
	{QPRTR, QPRTS, "RAW_PACKET", "", "rate"},

	{QPRTS, QPRTS, "UD SMI GSI", "", "cur qkey"},
	{QPRTS, QPRTS, "UC XRC_INI", "", "cur access alt mig"},
	{QPRTS, QPRTS, "RC XRC_TGT", "", "cur access alt mig rnr_timer"},
	{QPRTS, QPRTS, "RAW_PACKET", "", "rate"},

	{QPRTS, QPSQD, "UD SMI GSI UC RC XRC_INI XRC_TGT RAW_PACKET", "", "notify"},

	{QPSQD, QPRTS, "UD SMI GSI", "", "cur qkey"},
	{QPSQD, QPRTS, "UC XRC_INI", "", "cur access alt mig"},
	{QPSQD, QPRTS, "RC XRC_TGT", "", "cur access alt mig rnr_timer"},
	{QPSQD, QPRTS, "RAW_PACKET", "", ""},

	{QPSQD, QPSQD, "UD SMI GSI", "", "pkey qkey"},
	{QPSQD, QPSQD, "UC", "", "av alt access pkey mig"},
	{QPSQD, QPSQD, "RC", "", "port av timeout retry rnr_retry rd_atom dest_rd_atom alt access pkey rnr_timer mig"},
	{QPSQD, QPSQD, "XRC_INI", "", "port av timeout retry rnr_retry rd_atom alt access pkey mig"},
	{QPSQD, QPSQD, "XRC_TGT", "", "port av timeout dest_rd_atom alt access pkey rnr_timer mig"},
	{QPSQD, QPSQD, "RAW_PACKET", "", ""},

	{QPSQE, QPRTS, "UD SMI GSI", "", "cur qkey"},
	{QPSQE, QPRTS, "UC", "", "cur access"},
	{QPSQE, QPRTS, "RC XRC_INI XRC_TGT RAW_PACKET", "", ""},
}

func TestQPTransitions(t *testing.T) {
	type key struct {
		from, to QPState
		kind     QPType
	}
	rows := map[key]stateRow{}
	for _, row := range stateRows {
		for _, qpType := range allTypes {
			for _, name := range strings.Fields(row.types) {
				if name == qpType.String() {
					rows[key{row.from, row.to, qpType}] = row
				}
			}
		}
	}
	for from := QPReset; from <= QPErr; from++ {
		for to := QPReset; to <= QPErr; to++ {
			for _, qpType := range allTypes {
				t.Run(fmt.Sprintf("%v/%v-%v", qpType, from, to), func(t *testing.T) {
					row, ok := rows[key{from, to, qpType}]
					if !ok && to != QPReset && to != QPErr {
						if CheckTransition(from, to, qpType, QPAttrState) == nil {
							t.Error("is allowed")
						}
						return
					}
					required, optional := parseAttrs(t, row.required), parseAttrs(t, row.optional)
					check := func(mask QPAttrMask, want bool) {
						t.Helper()
						err := CheckTransition(from, to, qpType, mask)
						if (err == nil) != want || err != nil && !errors.Is(err, syscall.EINVAL) {
							t.Errorf("mask %#x: %v", uint32(mask), err)
						}
					}
					assertable := from == QPRTR || from == QPRTS || from == QPSQD || from == QPSQE
					if !assertable {
						optional &^= QPAttrCurState
					}
					check(QPAttrState|required, true)
					check(QPAttrState|required|optional, true)
					for _, bit := range attrNames {
						switch {
						case required&bit != 0:
							check((QPAttrState|required|optional)&^bit, false)
						case optional&bit != 0:
							check(QPAttrState|required|bit, true)
						default:
							check(QPAttrState|required|bit, false)
						}
					}
				})
			}
		}
	}
	for _, bad := range [][2]QPState{{QPErr + 1, QPReset}, {QPReset, QPErr + 1}} {
		if err := CheckTransition(bad[0], bad[1], QPTypeRC, QPAttrState); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// Modify takes the present state from the driver, unless the caller asserts one, and keeps it without a new one.
func TestQPModify(t *testing.T) {
	b := newBench(t, nil, nil, nil)
	steps := []struct {
		name string
		attr QPAttr
		mask QPAttrMask
		want QPState
		err  error
	}{
		{"skip INIT", QPAttr{State: QPRTR}, QPAttrState, QPReset, syscall.EINVAL},
		{"to INIT", QPAttr{State: QPInit}, QPAttrState | QPAttrPKeyIndex | QPAttrPort | QPAttrAccessFlags, QPInit, nil},
		{"stay in INIT", QPAttr{}, QPAttrPort, QPInit, nil},
		{"an attribute too early", QPAttr{}, QPAttrTimeout, QPInit, syscall.EINVAL},
		{"to RTR", QPAttr{State: QPRTR}, QPAttrState | QPAttrAV | QPAttrPathMTU | QPAttrDestQPN | QPAttrRQPSN | QPAttrMaxDestRdAtomic | QPAttrMinRNRTimer, QPRTR, nil},
		{"to RTS", QPAttr{State: QPRTS, CurState: QPRTR}, QPAttrState | QPAttrCurState | QPAttrTimeout | QPAttrRetryCnt | QPAttrRNRRetry | QPAttrSQPSN | QPAttrMaxRdAtomic, QPRTS, nil},
		{"assert a state that cannot be", QPAttr{State: QPRTS, CurState: QPInit}, QPAttrState | QPAttrCurState, QPRTS, syscall.EINVAL},
		{"to ERR", QPAttr{State: QPErr}, QPAttrState, QPErr, nil},
		{"back to RTS", QPAttr{State: QPRTS}, QPAttrState, QPErr, syscall.EINVAL},
		{"to RESET", QPAttr{State: QPReset}, QPAttrState, QPReset, nil},
	}
	for _, s := range steps {
		if err := b.qp.Modify(s.attr, s.mask, nil); !errors.Is(err, s.err) {
			t.Errorf("%s: %v, want %v", s.name, err, s.err)
		}
		if b.qp.State() != s.want {
			t.Errorf("%s: state is %v, want %v", s.name, b.qp.State(), s.want)
		}
	}
	b.drv.fail = func(string) error { return syscall.ENOMEM }
	if err := b.qp.Modify(QPAttr{State: QPErr}, QPAttrState, nil); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("driver refuses: %v", err)
	}
}
