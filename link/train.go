package link

import (
	"errors"

	"verbena/roce"
)

// minPacket is the shortest packet: a BTH and the ICRC.
const minPacket = roce.BTHLen + ICRCLen

// ErrTrain is the error for a train that violates a rule of [Train]; see [Train.Validate].
var ErrTrain = errors.New("malformed train")

// Errors of malformed trains. They are preallocated: a failing Send allocates no memory.
var (
	errTrainDst     = trainError("no destination")
	errTrainEmpty   = trainError("no packets")
	errTrainTooLong = trainError("longer than MaxTrain")
	errTrainPackets = trainError("more packets than MaxTrainPackets")
	errTrainSize    = trainError("Size without room for a BTH and the ICRC")
	errTrainLast    = trainError("last packet without room for a BTH and the ICRC")
)

type trainError string

func (e trainError) Error() string        { return ErrTrain.Error() + ": " + string(e) }
func (e trainError) Is(target error) bool { return target == ErrTrain }

// Validate checks the rules in the documentation of Train's fields. Its error is an [ErrTrain].
func (t *Train) Validate() error {
	n := len(t.Buf)
	switch {
	case !t.Dst.IsValid():
		return errTrainDst
	case n == 0:
		return errTrainEmpty
	case n > MaxTrain:
		return errTrainTooLong
	case t.Size < minPacket:
		return errTrainSize
	case n > t.Size*MaxTrainPackets:
		return errTrainPackets
	case n > t.Size && n%t.Size != 0 && n%t.Size < minPacket, n < minPacket:
		return errTrainLast
	}
	return nil
}

// NumPackets returns the number of packets in a valid train.
func (t *Train) NumPackets() int {
	if len(t.Buf) <= t.Size {
		return 1
	}
	return (len(t.Buf) + t.Size - 1) / t.Size
}

// Packet returns the i-th packet of a valid train, a slice of Buf.
func (t *Train) Packet(i int) []byte {
	start := i * t.Size
	end := min(start+t.Size, len(t.Buf))
	return t.Buf[start:end:end]
}

// cut returns packets i to j-1 as a train in the same buffer.
func (t *Train) cut(i, j int) Train {
	end := min(j*t.Size, len(t.Buf))
	c := *t
	c.Buf = t.Buf[i*t.Size : end : end]
	return c
}

// seal fills in the ICRCs for identifications that start at 0 and increase by step.
func (t *Train) seal(f roce.Flow, step uint16) {
	id := uint16(0)
	for b := t.Buf; len(b) > 0; id += step {
		n := min(t.Size, len(b))
		f.Seal(id, b[:n:n])
		b = b[n:]
	}
}
