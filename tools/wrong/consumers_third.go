package wrong

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"verbena/ib"
)

// initiallyMissedConsumers lists mistakes of a third reader that no check reported at first.
var initiallyMissedConsumers = []Consumer{
	{
		// The completion handler takes a lock of the control path, which holds it across the registration of memory.
		Name: "lock-over-registration",
		Rule: "A callback does not wait for a lock whose holder sleeps",
		Run: func(s *CheckedSite) error {
			var mu sync.Mutex
			l, err := openQPPair(s.Handles[0].Device(), qpPairOptions{handler: func(cq *ib.CQ) {
				mu.Lock()
				defer mu.Unlock()
				drainCQ(cq)
				cq.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed)
			}})
			if err != nil {
				return nil
			}
			if err := l.exchangeMessages(1); err != nil {
				return nil
			}
			for range 50 {
				mu.Lock()
				l.exchangeOneMessage()
				time.Sleep(time.Millisecond) // the handler begins
				if mr, err := l.pd.RegBytes(make([]byte, 4096), ib.AccessLocalWrite); err == nil {
					mr.Dereg()
				}
				mu.Unlock()
			}
			return nil
		},
	},
	{
		// The consumer fills the request again when the response has arrived. The completion of the request is collected
		// later.
		Name: "request-refilled-at-response",
		Rule: "The memory of a SEND is not changed until its completion is polled",
		Run: func(s *CheckedSite) error {
			l, err := openQPPair(s.Handles[0].Device(), qpPairOptions{})
			if err != nil {
				return nil
			}
			request := make([]byte, 64)
			mr, err := l.pd.RegBytes(request, ib.AccessLocalWrite)
			if err != nil {
				return nil
			}
			for i := range uint64(4) {
				if err := l.postRecv(1); err != nil {
					return nil
				}
				binary.NativeEndian.PutUint64(request, i)
				if _, err := l.a.PostSend(ib.SendWR{ID: 100, Opcode: ib.WRSend, Flags: ib.SendSignaled,
					SGList: []ib.SGE{{Addr: mr.Addr(), Length: 64, LKey: mr.LKey()}}}); err != nil {
					return nil
				}
			}
			if _, err := l.awaitCompletions(8); err != nil {
				return nil
			}
			mr.Dereg()
			l.close()
			return nil
		},
	},
	{
		// Remove abandons its objects in place of their destruction.
		Name: "idle-objects-abandoned",
		Rule: "Abandon is for an object with a call that is blocked",
		Run: func(s *CheckedSite) error {
			client := &ib.Client{Name: "wrong",
				Add: func(d *ib.Device) (any, error) { return openQPPair(d, qpPairOptions{}) },
				Remove: func(_ *ib.Device, data any) {
					l := data.(*qpPair)
					l.a.Abandon()
					l.b.Abandon()
					l.cq.Abandon()
					l.mr.Abandon()
					l.pd.Abandon()
				},
			}
			if err := s.Core.RegisterClient(client); err != nil {
				return nil
			}
			s.Core.UnregisterClient(client)
			return nil
		},
	},
	{
		// The owner counts by the processor in a word to which a peer adds by FETCH_ADD.
		Name: "word-counted-by-processor",
		Rule: "Atomic operations are atomic among the queue pairs of one device (AtomicHCA)",
		Weak: true,
		Run: func(s *CheckedSite) error {
			l, err := openQPPair(s.Handles[0].Device(), qpPairOptions{})
			if err != nil {
				return err
			}
			const access = ib.AccessLocalWrite | ib.AccessRemoteAtomic
			if err := l.b.Modify(ib.QPAttr{AccessFlags: access}, ib.QPAttrAccessFlags); err != nil {
				return err
			}
			word, old := make([]byte, 8), make([]byte, 8)
			to, err := l.pd.RegBytes(word, access)
			if err != nil {
				return err
			}
			from, err := l.pd.RegBytes(old, ib.AccessLocalWrite)
			if err != nil {
				return err
			}
			const n = 16
			for range n {
				if _, err := l.a.PostSend(ib.SendWR{Opcode: ib.WRAtomicFetchAdd, Flags: ib.SendSignaled, CompareAdd: 1,
					SGList:     []ib.SGE{{Addr: from.Addr(), Length: 8, LKey: from.LKey()}},
					RemoteAddr: to.Addr(), RKey: to.RKey()}); err != nil {
					return err
				}
				binary.NativeEndian.PutUint64(word, binary.NativeEndian.Uint64(word)+1)
				if _, err := l.awaitCompletions(1); err != nil {
					return err
				}
			}
			if got := binary.NativeEndian.Uint64(word); got != 2*n {
				err = fmt.Errorf("word: got %d, want %d", got, 2*n)
			}
			return errors.Join(err, from.Dereg(), to.Dereg(), l.close())
		},
	},
}
