package ib

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"verbena/ib/internal/qptable"
	"verbena/umem"
)

// TestQPTableMatchesMidlayerNames compares the names and bits of the specification's table with those of the midlayer.
func TestQPTableMatchesMidlayerNames(t *testing.T) {
	for i, name := range qptable.States {
		if QPState(i).String() != name {
			t.Errorf("state %d: got %v, want %s", i, QPState(i), name)
		}
	}
	for _, name := range qptable.Types {
		parseQPType(t, name)
	}
	for name, bit := range map[string]QPAttrMask{
		"state": QPAttrState, "cur": QPAttrCurState, "notify": QPAttrEnSQDAsyncNotify, "access": QPAttrAccessFlags,
		"pkey": QPAttrPKeyIndex, "port": QPAttrPort, "qkey": QPAttrQKey, "av": QPAttrAV, "mtu": QPAttrPathMTU,
		"timeout": QPAttrTimeout, "retry": QPAttrRetryCnt, "rnr_retry": QPAttrRNRRetry, "rq_psn": QPAttrRQPSN,
		"rd_atom": QPAttrMaxRdAtomic, "alt": QPAttrAltPath, "rnr_timer": QPAttrMinRNRTimer, "sq_psn": QPAttrSQPSN,
		"dest_rd_atom": QPAttrMaxDestRdAtomic, "mig": QPAttrPathMigState, "cap": QPAttrCap, "dest_qpn": QPAttrDestQPN,
		"rate": QPAttrRateLimit,
	} {
		if qptable.Attrs[name] != uint32(bit) {
			t.Errorf("%s: got %#x, want %#x", name, uint32(bit), qptable.Attrs[name])
		}
	}
}

func parseQPType(t testing.TB, name string) QPType {
	for _, kind := range allTypes {
		if kind.String() == name {
			return kind
		}
	}
	t.Fatalf("no type %s", name)
	return 0
}

// TestEachQPTransitionNeedsItsAttrs checks every transition of every type. The test uses the attributes of the table,
// then leaves out each one, and then adds each other attribute.
func TestEachQPTransitionNeedsItsAttrs(t *testing.T) {
	for from, fromName := range qptable.States {
		for to, toName := range qptable.States {
			for _, kind := range qptable.Types {
				t.Run(fmt.Sprintf("%s/%s-%s", kind, fromName, toName), func(t *testing.T) {
					check := func(mask uint32) {
						t.Helper()
						err := checkTransition(QPState(from), QPState(to), parseQPType(t, kind), QPAttrMask(mask))
						want := qptable.IsMaskAllowed(fromName, toName, kind, mask)
						if (err == nil) != want || err != nil && !errors.Is(err, syscall.EINVAL) {
							t.Errorf("CheckTransition with mask %#x: got %v, want allowed %v", mask, err, want)
						}
					}
					required, optional, _ := qptable.TransitionAttrs(fromName, toName, kind)
					state := qptable.Attrs["state"]
					check(state | required)
					check(required)
					check(state | required | optional)
					for _, bit := range qptable.Attrs {
						check((state | required | optional) ^ bit)
						check((state | required) ^ bit)
					}
				})
			}
		}
	}
	for _, bad := range [][2]QPState{{QPErr + 1, QPReset}, {QPReset, QPErr + 1}} {
		if err := checkTransition(bad[0], bad[1], QPTypeRC, QPAttrState); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%v: got %v", bad, err)
		}
	}
}

// TestRandomModifiesMatchTable compares the state after random sequences of Modify calls with the table.
func TestRandomModifiesMatchTable(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := newBench(t, nil, nil, nil)
		kind := rapid.SampledFrom(qptable.Types).Draw(rt, "type")
		b.qp.drv.(*fakeQP).typ = parseQPType(t, kind)
		state := "RESET" // state of the model
		rt.Repeat(map[string]func(*rapid.T){
			"modify": func(rt *rapid.T) {
				to := rapid.SampledFrom(qptable.States).Draw(rt, "to")
				required, optional, _ := qptable.TransitionAttrs(state, to, kind)
				mask := qptable.Attrs["state"] | required | optional&rapid.Uint32().Draw(rt, "optional")
				if rapid.IntRange(0, 3).Draw(rt, "wrong") == 0 {
					mask ^= uint32(1) << rapid.IntRange(0, 20).Draw(rt, "bit")
				}
				from := state
				if mask&qptable.Attrs["state"] == 0 {
					to = from
				}
				err := b.qp.Modify(QPAttr{State: parseQPState(to), CurState: parseQPState(from)}, QPAttrMask(mask))
				want := qptable.IsMaskAllowed(from, to, kind, mask)
				if (err == nil) != want {
					rt.Fatalf("%s: %s to %s, mask %#x: got %v, want allowed %v", kind, from, to, mask, err, want)
				}
				if want {
					state = to
				}
			},
			"send queue error": func(rt *rapid.T) { // caused by the device, not by Modify
				if state != "RTS" || kind != "UD" && kind != "UC" {
					rt.Skip("no such transition")
				}
				b.qp.drv.(*fakeQP).state.Store(int32(QPSQE))
				state = "SQE"
			},
			"": func(rt *rapid.T) {
				if got := b.qp.State().String(); got != state {
					rt.Fatalf("state: got %s, want %s", got, state)
				}
			},
		})
		b.destroyAll(t)
	})
}

func parseQPState(name string) QPState {
	for i, n := range qptable.States {
		if n == name {
			return QPState(i)
		}
	}
	panic("no state " + name)
}

// TestModifyStartsFromDriverState checks that Modify starts from the driver's state unless the caller asserts a state.
// The test also checks that the state does not change if mask names no new state.
func TestModifyStartsFromDriverState(t *testing.T) {
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
		{"to RTR", QPAttr{State: QPRTR},
			QPAttrState | QPAttrAV | QPAttrPathMTU | QPAttrDestQPN | QPAttrRQPSN | QPAttrMaxDestRdAtomic | QPAttrMinRNRTimer,
			QPRTR, nil},
		{"to RTS", QPAttr{State: QPRTS, CurState: QPRTR},
			QPAttrState | QPAttrCurState | QPAttrTimeout | QPAttrRetryCnt | QPAttrRNRRetry | QPAttrSQPSN | QPAttrMaxRdAtomic,
			QPRTS, nil},
		{"assert an impossible state", QPAttr{State: QPRTS, CurState: QPInit}, QPAttrState | QPAttrCurState, QPRTS,
			syscall.EINVAL},
		{"to ERR", QPAttr{State: QPErr}, QPAttrState, QPErr, nil},
		{"back to RTS", QPAttr{State: QPRTS}, QPAttrState, QPErr, syscall.EINVAL},
		{"to RESET", QPAttr{State: QPReset}, QPAttrState, QPReset, nil},
	}
	for _, s := range steps {
		if err := b.qp.Modify(s.attr, s.mask); !errors.Is(err, s.err) {
			t.Errorf("%s: got %v, want %v", s.name, err, s.err)
		}
		if b.qp.State() != s.want {
			t.Errorf("%s: got state %v, want %v", s.name, b.qp.State(), s.want)
		}
	}
	b.drv.fail = func(string) error { return syscall.ENOMEM }
	if err := b.qp.Modify(QPAttr{State: QPErr}, QPAttrState); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("failing driver: got %v", err)
	}
}

// TestModifyIsNotSerialised checks that a blocked Modify in the driver does not delay another Modify.
func TestModifyIsNotSerialised(t *testing.T) {
	b := newBench(t, nil, nil, nil)
	hung, release := make(chan int), make(chan int)
	var first atomic.Bool
	b.drv.fail = func(what string) error {
		if what == "modify qp" && !first.Swap(true) {
			close(hung)
			<-release
		}
		return nil
	}
	done := make(chan error)
	go func() {
		done <- b.qp.Modify(QPAttr{State: QPInit, Port: 1}, QPAttrState|QPAttrPKeyIndex|QPAttrPort|QPAttrAccessFlags)
	}()
	<-hung
	must(t, b.qp.Modify(QPAttr{State: QPErr}, QPAttrState))
	if s := b.qp.State(); s != QPErr {
		t.Errorf("state after the second Modify: got %v, want ERR", s)
	}
	close(release)
	wantErrno(t, "the first, now in ERR", <-done, syscall.EINVAL)
	b.destroyAll(t)
}

// TestConcurrentRegionChangeFails starts two concurrent changes of a region. The second change must fail without
// waiting.
func TestConcurrentRegionChangeFails(t *testing.T) {
	b := newFullBench(t)
	mem := umem.NewLocal()
	addr, err := mem.Add(make([]byte, 8))
	must(t, err)
	mr, err := b.pd.AllocMR(1)
	must(t, err)
	b.drv.fail = func(what string) error {
		if what == "map" {
			wantErrno(t, "Map", mr.Map(mem, nil, []umem.Range{{Addr: addr, Length: 8}}, addr), syscall.EBUSY)
			wantErrno(t, "Dereg", mr.Dereg(), syscall.EBUSY)
		}
		return nil
	}
	must(t, mr.Map(mem, nil, []umem.Range{{Addr: addr, Length: 8}}, addr))
	b.drv.fail = nil
	must(t, mr.Dereg())
	b.destroyAll(t)
}
