// Package attach preserves the object of an upper-level protocol, such as a disk, a network interface or a file system,
// through a transient reset of its device. The requests of the object wait while the device is absent. When the device
// returns, the object is attached again. The object is lost only if the device does not return in time. The package
// implements point 7 of the contract of package ib.
//
// In Linux each protocol has its own implementation. The SCSI RDMA transport blocks its remote ports and fails them
// after dev_loss_tmo. NVMe over fabrics reconnects until ctrl_loss_tmo. A network interface is detached and attached
// (netif_device_detach). This package implements the common part.
//
// An [Attachment] follows one device through any number of registrations, identified by its [Identity]:
//
//	        Attach succeeded                        LossTimeout after the object was attached last
//	Held ---------------------> Attached       Held -----------------------------------------------> Lost
//	 ^                             |
//	 |                             | the device is removed or reports IBV_EVENT_DEVICE_FATAL, or the session fails
//	 |        Detach returned      v
//	 +------------------------ Detaching       (from any state: Close -> Closed)
//
// A session is the set of objects that the protocol creates on the device: queue pairs, regions, connections.
// Config.Attach creates a session, and Config.Detach destroys it. A goroutine of the attachment calls these functions
// and Config.Lost, one at a time. The attachment never calls them in the callchain of its own methods, of a callback,
// or of the device's registration. Unregistration of the device waits for the end of the session but not for a running
// Attach. Attach may therefore take long, for example to connect to a peer that is being reset too.
//
// A request calls [Attachment.Acquire], which waits for a session. The request then posts its work requests and calls
// [Attachment.Release]. When the session ends, outstanding requests complete with flush errors. The protocol stores
// these requests and posts them again in the next session. Users of the protocol then see a reset as a delay. Whether a
// request may be executed twice depends on the protocol.
//
//	type disk struct {
//		a *attach.Attachment[*session]
//	}
//
//	d.a, err = attach.New(core, attach.Config[*session]{
//		Name:        "disk0",
//		Device:      attach.Identity{Name: "rxe0"},
//		Attach:      d.connect,                           // makes CQ, QP, MR; connects
//		Detach:      func(_ *ib.Device, s *session) { s.destroy() },
//		Lost:        func(cause error) { d.failAll(cause) }, // EIO to all who wait, now and later
//		LossTimeout: 30 * time.Second,
//	})
//
//	func (d *disk) submit(ctx context.Context, r *request) error {
//		s, err := d.a.Acquire(ctx)
//		if err != nil {
//			return err // lost, or ctx is done
//		}
//		defer d.a.Release()
//		return s.post(r)
//	}
package attach
