// Package cm connects queue pairs of package verbs by the RDMA connection manager: by addresses and ports, as programs of librdmacm do, with
// which it can speak.
//
//	m, err := cm.Open()                                        // the kernel's, or that of the service under which the program runs
//
//	passive                                                    active
//	l, err := m.Listen(netip.MustParseAddrPort("[::]:7471"), 0)   c, err := m.Resolve(ctx, cm.Target{Addr: addr})
//	r, err := l.Accept(ctx)                                    // make a queue pair on the device with c.NodeGUID()
//	// make a queue pair on the device with r.NodeGUID()       err = c.Init(qp)
//	err = r.Init(qp)                                           // post receives
//	// post receives                                           data, err := c.Connect(ctx, qp, cm.Param{}, hello)
//	c, err := r.Accept(qp, cm.Param{}, welcome)
//
//	<-c.Done()                                                 // it has ended: c.Err() says why
//
// A connection that its peer refuses is a *RefusedError; a peer that does not answer is ETIMEDOUT, a device that goes ENODEV.
package cm
