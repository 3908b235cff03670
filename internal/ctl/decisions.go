package ctl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// The memory of OpDecisions has two texts, which end at the first zero byte. The service adds a line to the first text
// for each decision. The second text is a log of package ib/weak for a replay, which the client writes before OpAttach.
// The memory begins with the number of decisions for which the first text had no room, as a uint32 in the byte order of
// the machine.
const (
	DecisionText   = 64      // offset of the first text
	DecisionReplay = 2 << 20 // offset of the second text
	DecisionMemory = 4 << 20 // size of the memory
)

// DecisionFile is the client's side of the memory of OpDecisions.
type DecisionFile struct{ mem *os.File }

// Decisions makes the memory for the decisions of the program of the next Attach. The caller closes the memory, which
// outlives the service. Decisions may sleep.
//
//verbena:allow close a client trusts its service
func (c *Client) Decisions() (*DecisionFile, error) {
	_, mem, err := c.exchange(&Request{Op: OpDecisions}, nil)
	switch {
	case errors.Is(err, syscall.EINVAL):
		err = errors.New("the running service is an older build without decision logs: end it with `verbena stop`")
	case err == nil && mem == nil:
		err = fmt.Errorf("record decisions: the service sent no memory: %w", syscall.EPROTO)
	case err == nil:
		return &DecisionFile{mem}, nil
	}
	if mem != nil {
		mem.Close()
	}
	return nil, err
}

// BeginFaultDecisions records, and with w.Replay replays, the random decisions of fault rules and of the links' shapes
// in the memory of Decisions, until the connection ends. It returns EPERM to a client that may not add rules. It may
// sleep.
func (c *Client) BeginFaultDecisions(w Weak) error {
	_, _, err := c.exchange(&Request{Op: OpFaultDecisions, Weak: &w}, nil)
	return err
}

// WriteReplay writes the log for a replay. It returns EFBIG for a longer text than there is room for.
func (f *DecisionFile) WriteReplay(text []byte) error {
	if len(text) > DecisionMemory-DecisionReplay {
		return fmt.Errorf("a replay of %d bytes: %w", len(text), syscall.EFBIG)
	}
	_, err := f.mem.WriteAt(text, DecisionReplay)
	return err
}

// Record returns the text of the recorded decisions, and the number of decisions for which there was no room.
func (f *DecisionFile) Record() (text io.Reader, missing uint32, err error) {
	var head [4]byte
	if _, err := f.mem.ReadAt(head[:], 0); err != nil {
		return nil, 0, fmt.Errorf("read decisions: %w", err)
	}
	return io.NewSectionReader(f.mem, DecisionText, DecisionReplay-DecisionText), binary.NativeEndian.Uint32(head[:]), nil
}

// Close releases the memory.
//
//verbena:allow close a client trusts its service
func (f *DecisionFile) Close() error { return f.mem.Close() }
