package link

// PortForgetter is an Endpoint that keeps something for each source port ([Train.SPort]) that was used.
type PortForgetter interface {
	// ForgetPort says that the next train from that port may be long in coming. It may not sleep.
	ForgetPort(port uint16)
}

// ForgetPort tells an endpoint, if it wants to know.
func ForgetPort(e Endpoint, port uint16) {
	if f, ok := e.(PortForgetter); ok {
		f.ForgetPort(port)
	}
}

// ForgetPort is [PortForgetter.ForgetPort].
func (e *faultEndpoint) ForgetPort(port uint16) { ForgetPort(e.RawEndpoint, port) }
