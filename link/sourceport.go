package link

// PortForgetter is an Endpoint that keeps resources for each used source port ([Train.SPort]).
type PortForgetter interface {
	// ForgetPort announces that the next train from the port may not come soon. It may not sleep.
	ForgetPort(port uint16)
}

// ForgetPort calls the method of the endpoint, if it has one.
func ForgetPort(e Endpoint, port uint16) {
	if f, ok := e.(PortForgetter); ok {
		f.ForgetPort(port)
	}
}

// ForgetPort implements [PortForgetter.ForgetPort].
func (e *faultEndpoint) ForgetPort(port uint16) { ForgetPort(e.RawEndpoint, port) }
