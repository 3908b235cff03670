package ctl

import (
	"fmt"
	"os"
	"syscall"
)

// RequestTrace begins or ends a trace of the work requests of the user's programs. The answer to the begin has the
// memory of the trace, in the format of package reqtrace, as a descriptor. The trace ends with the connection at the
// latest.
type RequestTrace struct {
	End bool `json:",omitempty"`
}

// TraceRequests begins a trace. The caller closes the memory, which outlives the service. TraceRequests may sleep.
//
//verbena:allow close a client trusts its service
func (c *Client) TraceRequests() (*os.File, error) {
	_, mem, err := c.exchange(&Request{Op: OpRequests, Requests: &RequestTrace{}}, nil)
	if err != nil {
		if mem != nil {
			mem.Close()
		}
		return nil, err
	}
	if mem == nil {
		return nil, fmt.Errorf("trace work requests: the service sent no memory: %w", syscall.EPROTO)
	}
	return mem, nil
}

// EndRequestTrace ends the trace of the connection. After its return, the memory does not change. It may sleep.
func (c *Client) EndRequestTrace() error {
	_, err := c.Do(&Request{Op: OpRequests, Requests: &RequestTrace{End: true}})
	return err
}
