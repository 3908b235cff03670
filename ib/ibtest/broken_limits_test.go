package ibtest

import (
	"verbena/ib"
)

// attributeHooks are hooks of a wrongDriver into what it reports, and into what a consumer sets.
type attributeHooks struct {
	queried func(q *wrongQP, a *ib.QPAttr) // what Query is about to report
}

func (q *wrongQP) Query(mask ib.QPAttrMask) (ib.QPAttr, error) {
	a, err := q.QP.Query(mask)
	if err == nil && q.d.queried != nil {
		q.d.queried(q, &a)
	}
	return a, err
}

// wrongAttributes are wrong about the attributes of queue pairs.
var wrongAttributes = []wrong{
	{
		defect: "reports the two numbers of READs and atomics in each other's place",
		break_: func(d *wrongDriver) {
			d.queried = func(_ *wrongQP, a *ib.QPAttr) {
				a.MaxRdAtomic, a.MaxDestRdAtomic = a.MaxDestRdAtomic, a.MaxRdAtomic
			}
		},
		by: "QueuePair/Attributes", says: "number of outstanding READs and atomics",
	},
	{
		defect: "reports the DSCP of a connection as its traffic class",
		break_: func(d *wrongDriver) {
			d.queried = func(_ *wrongQP, a *ib.QPAttr) { a.AH.GRH.TrafficClass >>= 2 }
		},
		by: "QueuePair/Attributes", says: "address",
	},
	{
		defect: "sets the RNR timer, whether Modify names it or not",
		break_: func(d *wrongDriver) {
			d.modify = func(q *wrongQP, a *ib.QPAttr, m ib.QPAttrMask) error {
				err := q.QP.Modify(a, m, nil)
				if err == nil && q.QP.State() == ib.QPRTS {
					q.QP.Modify(a, ib.QPAttrMinRNRTimer, nil)
				}
				return err
			}
		},
		by: "QueuePair/Attributes", says: "RNR timer",
	},
	{
		defect: "raises the event that the send queue is drained for every transition to SQD",
		break_: func(d *wrongDriver) {
			d.modify = func(q *wrongQP, a *ib.QPAttr, m ib.QPAttrMask) error {
				asked := *a
				if m&ib.QPAttrState != 0 && a.State == ib.QPSQD && q.QP.State() == ib.QPRTS {
					asked.EnSQDAsyncNotify = true
					m |= ib.QPAttrEnSQDAsyncNotify
				}
				return q.QP.Modify(&asked, m, nil)
			}
		},
		by: "SQ/DrainedEvent", says: "events that the send queue is drained, want 0",
	},
	{
		defect: "raises the event that the send queue is drained while a message is in flight",
		break_: func(d *wrongDriver) {
			d.modify = func(q *wrongQP, a *ib.QPAttr, m ib.QPAttrMask) error {
				quiet, early := *a, m&ib.QPAttrEnSQDAsyncNotify != 0 && a.EnSQDAsyncNotify
				quiet.EnSQDAsyncNotify = false
				err := q.QP.Modify(&quiet, m, nil)
				if err == nil && early {
					q.obj.Raise(ib.EventSQDrained)
				}
				return err
			}
		},
		by: "SQ/DrainedEvent", says: "while Query reports that it is not",
	},
	{
		defect: "has room for a few senders that wait for a receive, and lets the others give up",
		break_: func(d *wrongDriver) {
			d.modify = func(q *wrongQP, a *ib.QPAttr, m ib.QPAttrMask) error {
				given := *a
				if m&ib.QPAttrRNRRetry != 0 && len(each(d, &d.qps)) > 8 {
					given.RNRRetry = 0
				}
				return q.QP.Modify(&given, m, nil)
			}
		},
		by: "Errors/ReceiverNotReady", says: "without a receive",
	},
}
