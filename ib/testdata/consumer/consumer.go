// Package consumer calls functions that only a driver may call. The compiler must reject each line that is marked with
// an error.
package consumer

import "verbena/ib"

func forge(core *ib.Core, d *ib.Device, pd *ib.PD, mr *ib.MR, mw *ib.MW, cq *ib.CQ, qp *ib.QP, srq *ib.SRQ, ah *ib.AH, x *ib.XRCD, drv ib.Driver, hold *ib.Hold) {
	core.Register(d)                        // error: cannot use d
	core.Unregister(d)                      // error: cannot use d
	d.DispatchEvent(ib.EventDeviceFatal, 0) // error: d.DispatchEvent undefined
	d.SetError()                            // error: d.SetError undefined
	d.Fail(nil)                             // error: d.Fail undefined
	d.OnFailure(nil)                        // error: d.OnFailure undefined
	d.AtHandler(nil)                        // error: d.AtHandler undefined
	d.Wrap(nil)                             // error: d.Wrap undefined
	d.HoldCallbacks()                       // error: d.HoldCallbacks undefined
	d.RunCallbacks()                        // error: d.RunCallbacks undefined
	hold.Add(d)                             // error: cannot use d
	d.Dealloc()                             // error: d.Dealloc undefined
	mr.SetKeys(1, 1)                        // error: mr.SetKeys undefined
	mw.SetRKey(1)                           // error: mw.SetRKey undefined
	cq.SetEntries(1)                        // error: cq.SetEntries undefined
	cq.Completed()                          // error: cq.Completed undefined
	cq.Raise(ib.EventCQErr)                 // error: cq.Raise undefined
	qp.SetNum(1)                            // error: qp.SetNum undefined
	qp.Raise(ib.EventQPFatal)               // error: qp.Raise undefined
	srq.SetNum(1)                           // error: srq.SetNum undefined
	srq.Raise(ib.EventSRQErr)               // error: srq.Raise undefined
	_ = d.Driver()                          // error: d.Driver undefined
	_ = pd.Driver()                         // error: pd.Driver undefined
	_ = mr.Driver()                         // error: mr.Driver undefined
	_ = mw.Driver()                         // error: mw.Driver undefined
	_ = cq.Driver()                         // error: cq.Driver undefined
	_ = qp.Driver()                         // error: qp.Driver undefined
	_ = srq.Driver()                        // error: srq.Driver undefined
	_ = ah.Driver()                         // error: ah.Driver undefined
	_ = x.Driver()                          // error: x.Driver undefined
	_ = ib.DeviceHandle{dev: d}             // error: dev
	_ = ib.CQHandle{cq: cq}                 // error: cq
	_ = ib.QPHandle{qp: qp}                 // error: qp
	_ = d.handle                            // error: handle
	_ = ib.UserSide{key: nil}               // error: key
	_ = ib.Hold{devices: nil}               // error: devices
}
