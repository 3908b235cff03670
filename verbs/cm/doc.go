// Package cm connects queue pairs of package verbs with the RDMA connection manager, by IP addresses and ports. The
// package interoperates with programs that use librdmacm.
//
//	m, err := cm.Open()                                        // the manager of the kernel, or of the program's service
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
// If the peer rejects a connection, the error is a *RefusedError. If the peer does not respond, the error is ETIMEDOUT.
// If the device has been removed, the error is ENODEV.
package cm
