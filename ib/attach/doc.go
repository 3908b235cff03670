// Package attach lets an upper-level protocol keep what it offers to its own users, a disk, a network interface, a
// file system, through a transient reset of the device below: the object stays, its requests are held while there is
// no device, and when the device has come back the object is attached to it again. Only when that takes too long is
// the object lost for good. It is the seventh point of the contract of package ib.
//
// In Linux each protocol does this for itself: the SCSI RDMA transport blocks its remote ports and gives up after
// dev_loss_tmo, NVMe over fabrics reconnects until ctrl_loss_tmo, a network interface is detached and attached
// (netif_device_detach). This is their common part.
//
// An [Attachment] follows one device, known by its [Identity], through any number of registrations:
//
//	        Attach succeeded                        LossTimeout after the object was attached last
//	Held ---------------------> Attached       Held -----------------------------------------------> Lost
//	 ^                             |
//	 |                             | the device goes, or says IBV_EVENT_DEVICE_FATAL; the session fails
//	 |        Detach returned      v
//	 +------------------------ Detaching       (from any state: Close -> Closed)
//
// What the protocol makes on the device, its queue pairs, regions and connections, is a session: Config.Attach makes
// one, Config.Detach destroys it. Both, and Config.Lost, are called one at a time by a goroutine of the attachment:
// never from the callchain of a call into it, of a callback, or of the device's registration, which waits for
// nothing but the end of a session on a device that goes. So Attach may take its time, to connect to a peer that is
// being reset itself, say.
//
// A request of the protocol's user takes the session by [Attachment.Acquire], which waits while the object is held,
// posts its work requests, and lets go by [Attachment.Release]. What is outstanding when the session ends completes
// with flush errors; the protocol keeps those requests, and posts them again in the next session. That is what makes a
// reset look like a delay; whether a request may be carried out twice is for the protocol to know.
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
