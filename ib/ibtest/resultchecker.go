package ibtest

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"verbena/ib"
)

// resultChecker fails a test if calls do not have the expected results. It waits for results up to a timeout.
type resultChecker struct {
	testing.TB
	timeout time.Duration
}

// must fails the test if err is not nil.
func (r *resultChecker) must(what string, err error) {
	r.Helper()
	if err != nil {
		r.Fatalf("%s: %v", what, err)
	}
}

// wantErrno reports a failure, without ending the test, unless err wraps one of the numbers.
func (r *resultChecker) wantErrno(what string, err error, want ...syscall.Errno) {
	r.Helper()
	for _, n := range want {
		if errors.Is(err, n) {
			return
		}
	}
	r.Errorf("%s: got error %v, want %v", what, err, want)
}

// requireFeature skips the test if err means that the driver lacks the feature, and fails it for other errors.
func (r *resultChecker) requireFeature(ability string, err error) {
	r.Helper()
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		r.Skipf("the driver has no %s: %v", ability, err)
	}
	r.must("use "+ability, err)
}

// waitLimit limits a wait by time and by a number of iterations. A machine that is not overloaded does at least this
// number of iterations in the time, so an overloaded machine is not mistaken for an inactive driver.
type waitLimit struct {
	end        time.Time
	iterations int
	yields     int           // yields so far; the first wait does not sleep
	pause      time.Duration // next sleep; grows to a millisecond
}

func (r *resultChecker) newWaitLimit() *waitLimit {
	return &waitLimit{end: time.Now().Add(r.timeout), iterations: int(r.timeout / time.Millisecond), pause: briefly}
}

// eventually waits until cond holds.
func (r *resultChecker) eventually(what string, cond func() bool) {
	r.Helper()
	for p := r.newWaitLimit(); !cond(); {
		if p.yieldAndCheckOver() {
			r.Fatalf("timed out after %v: %s", r.timeout, what)
		}
	}
}

const briefly = 20 * time.Microsecond

// yieldBriefly yields to other threads for a short time.
func yieldBriefly() {
	runtime.Gosched()
	time.Sleep(briefly)
}

// waitCompletions polls a queue until it has n completions, which it returns in order.
func (r *resultChecker) waitCompletions(cq *ib.CQ, n int) []ib.WC {
	r.Helper()
	all := make([]ib.WC, 0, n)
	r.eventually(fmt.Sprintf("%d completions", n), func() bool {
		wc := make([]ib.WC, n-len(all))
		k, err := cq.Poll(wc)
		r.must("poll", err)
		if k < 0 || k > len(wc) {
			r.Fatalf("poll: %d completions in room for %d", k, len(wc))
		}
		all = append(all, wc[:k]...)
		return len(all) >= n
	})
	return all
}

// maxEmptyPolls is the number of polls in succession after which drain takes a queue to be empty. A device may return a
// completion of a flushed request some polls late.
const maxEmptyPolls = 16

// drainCQ removes all completions of a queue, and returns their number.
func (r *resultChecker) drainCQ(cq *ib.CQ) (total int) {
	r.Helper()
	var wc [8]ib.WC
	for empty := 0; empty < maxEmptyPolls; empty++ {
		n, err := cq.Poll(wc[:])
		r.must("poll", err)
		if n > 0 {
			total, empty = total+n, -1
		}
	}
	return total
}

// waitOneCompletion waits for one completion and checks its ID and status.
func (r *resultChecker) waitOneCompletion(cq *ib.CQ, id uint64, status ib.WCStatus) ib.WC {
	r.Helper()
	wc := r.waitCompletions(cq, 1)[0]
	if wc.ID != id || wc.Status != status {
		r.Fatalf("completion of work request %d with %q, want %d with %q", wc.ID, wc.Status, id, status)
	}
	return wc
}

// wantQPState waits until State returns a state, and checks that Query returns it too.
func (r *resultChecker) wantQPState(what string, qp *ib.QP, want ib.QPState) {
	r.Helper()
	r.eventually(fmt.Sprintf("%s: state %v", what, want), func() bool { return qp.State() == want })
	for _, mask := range []ib.QPAttrMask{0, ib.QPAttrState, ib.QPAttrState | ib.QPAttrCurState | ib.QPAttrAV} {
		a, _, err := qp.Query(mask)
		if err != nil || a.State != want || a.CurState != want {
			r.Fatalf("%s: Query shows state %v (%v), want %v, as State does", what, a.State, err, want)
		}
	}
}

// wantCompletionStatus waits for the completion of work request 1, which has one of some statuses.
func (r *resultChecker) wantCompletionStatus(what string, cq *ib.CQ, want []ib.WCStatus) {
	r.Helper()
	wc := r.waitAnyCompletion(cq)
	for _, s := range want {
		if wc.ID == 1 && wc.Status == s {
			return
		}
	}
	r.Errorf("%s: got completion of work request %d with %q, want 1 with one of %q", what, wc.ID, wc.Status, want)
}

// mustPostRecv posts a receive and fails the test if it is rejected.
func (r *resultChecker) mustPostRecv(qp *ib.QP, wr ib.RecvWR) {
	r.Helper()
	if n, err := qp.PostRecv(wr); n != 1 || err != nil {
		r.Fatalf("post receive: got %d taken, %v, want 1", n, err)
	}
}

// wantMemoryUnchanged fails the test if the memory changes within a short time.
func (r *resultChecker) wantMemoryUnchanged(b []byte, when string) {
	r.Helper()
	fillPattern(b, 77)
	want := bytes.Clone(b)
	for range 30 {
		yieldBriefly()
		if !bytes.Equal(b, want) {
			r.Fatalf("memory was written %s", when)
		}
	}
}

// mustPostSend posts a send and fails the test if it is rejected.
func (r *resultChecker) mustPostSend(qp *ib.QP, wr ib.SendWR) {
	r.Helper()
	if n, err := qp.PostSend(wr); n != 1 || err != nil {
		r.Fatalf("post send %d: %d taken, %v", wr.ID, n, err)
	}
}

// queryAllAttributes returns all attributes.
func (r *resultChecker) queryAllAttributes(qp *ib.QP) ib.QPAttr {
	r.Helper()
	a, _, err := qp.Query(1<<21 - 1)
	r.must("query qp", err)
	return a
}

// postRecvWithRetry posts a receive, from any goroutine. The queue may be full until a handler has polled.
func (r *resultChecker) postRecvWithRetry(qp *ib.QP, wr ib.RecvWR) error {
	for p := r.newWaitLimit(); ; {
		_, err := qp.PostRecv(wr)
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.ENOMEM) || p.yieldAndCheckOver() {
			return fmt.Errorf("post receive: %w", err)
		}
	}
}

// pollWithRetry polls until it has n completions, from any goroutine.
func (r *resultChecker) pollWithRetry(cq *ib.CQ, n int) error {
	wc := make([]ib.WC, n)
	for p := r.newWaitLimit(); ; {
		k, err := cq.Poll(wc[:n])
		if err != nil {
			return fmt.Errorf("poll: %w", err)
		}
		for _, w := range wc[:k] {
			if w.Status != ib.WCSuccess {
				return fmt.Errorf("completion with %q", w.Status)
			}
		}
		if n -= k; n == 0 {
			return nil
		}
		if p.yieldAndCheckOver() {
			return fmt.Errorf("timed out after %v waiting for %d completions", r.timeout, n)
		}
	}
}

// pollInto polls one completion into wc.
func (r *resultChecker) pollInto(cq *ib.CQ, wc *ib.WC) {
	r.Helper()
	into := []ib.WC{*wc}
	r.eventually("a completion", func() bool {
		n, err := cq.Poll(into)
		r.must("poll", err)
		return n == 1
	})
	*wc = into[0]
}

// mustPostSRQ posts a receive and fails the test if the queue rejects it.
func (r *resultChecker) mustPostSRQ(srq *ib.SRQ, wr ib.RecvWR) {
	r.Helper()
	if n, err := srq.PostRecv(wr); n != 1 || err != nil {
		r.Fatalf("post receive: %d taken, %v", n, err)
	}
}

// waitAnyCompletion waits for one completion, with any ID and status.
func (r *resultChecker) waitAnyCompletion(cq *ib.CQ) ib.WC {
	r.Helper()
	return r.waitCompletions(cq, 1)[0]
}
