package msg

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Len is the length of a management datagram in bytes (IBA 13.4.2).
const Len = 256

// headerLen is the length of the datagram's header (struct ib_mad_hdr).
const headerLen = 24

// The following constants are the header's values for the CM (IBA 13.4.2, 16.7.1).
const (
	baseVersion  = 1
	classCM      = 0x07 // IB_MGMT_CLASS_CM
	classVersion = 2
	methodSend   = 0x03
)

// Attribute identifies the message of a datagram (IBA 16.7.2).
type Attribute uint16

const (
	AttrREQ     Attribute = 0x0010
	AttrMRA     Attribute = 0x0011
	AttrREJ     Attribute = 0x0012
	AttrREP     Attribute = 0x0013
	AttrRTU     Attribute = 0x0014
	AttrDREQ    Attribute = 0x0015
	AttrDREP    Attribute = 0x0016
	AttrSIDRREQ Attribute = 0x0017
	AttrSIDRREP Attribute = 0x0018
	AttrLAP     Attribute = 0x0019
	AttrAPR     Attribute = 0x001a
)

func (a Attribute) String() string {
	names := [...]string{"REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR"}
	if i := int(a) - int(AttrREQ); i >= 0 && i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("attribute %#04x", uint16(a))
}

// Message is one of the messages of this package, by pointer.
type Message interface {
	Attribute() Attribute
	visitFields(*codec)
}

// Errors of Parse.
var (
	errLength    = errors.New("the datagram does not have 256 bytes")
	errClass     = errors.New("not a datagram of the communication manager")
	errMethod    = errors.New("unknown method")
	errStatus    = errors.New("the header contains an error status of the sender")
	errAttribute = errors.New("unknown message")
)

// Parse decodes a datagram. The transaction ID is chosen by REQ, LAP, DREQ and SIDR_REQ, and repeated by the
// messages in reply. The returned message has its own copy of the private data.
func Parse(b []byte) (tid uint64, m Message, err error) {
	if len(b) != Len {
		return 0, nil, fmt.Errorf("%d bytes: %w", len(b), errLength)
	}
	attr := Attribute(binary.BigEndian.Uint16(b[16:]))
	switch {
	case b[0] != baseVersion || b[1] != classCM || b[2] != classVersion:
		return 0, nil, fmt.Errorf("base version %d, class %#02x, class version %d: %w", b[0], b[1], b[2], errClass)
	case b[3] != methodSend:
		return 0, nil, fmt.Errorf("method %#02x: %w", b[3], errMethod)
	case binary.BigEndian.Uint16(b[4:]) != 0:
		return 0, nil, fmt.Errorf("status %#04x: %w", binary.BigEndian.Uint16(b[4:]), errStatus)
	}
	if m = newMessage(attr); m == nil {
		return 0, nil, fmt.Errorf("%v: %w", attr, errAttribute)
	}
	m.visitFields(&codec{b: b[headerLen:]})
	return binary.BigEndian.Uint64(b[8:]), m, nil
}

// Append appends the datagram of a message. Append panics if the private data or the value of a field is too long.
// The caller must check both against the Max constants.
func Append(b []byte, tid uint64, m Message) []byte {
	n := len(b)
	b = append(b, make([]byte, Len)...)
	d := b[n:]
	d[0], d[1], d[2], d[3] = baseVersion, classCM, classVersion, methodSend
	binary.BigEndian.PutUint64(d[8:], tid)
	binary.BigEndian.PutUint16(d[16:], uint16(m.Attribute()))
	m.visitFields(&codec{b: d[headerLen:], encodes: true})
	return b
}

func newMessage(a Attribute) Message {
	switch a {
	case AttrREQ:
		return new(REQ)
	case AttrMRA:
		return new(MRA)
	case AttrREJ:
		return new(REJ)
	case AttrREP:
		return new(REP)
	case AttrRTU:
		return new(RTU)
	case AttrDREQ:
		return new(DREQ)
	case AttrDREP:
		return new(DREP)
	case AttrSIDRREQ:
		return new(SIDRREQ)
	case AttrSIDRREP:
		return new(SIDRREP)
	case AttrLAP:
		return new(LAP)
	case AttrAPR:
		return new(APR)
	}
	return nil
}

// codec visits the fields of a message, and copies them to or from its bytes, which follow the datagram's header.
type codec struct {
	b       []byte
	encodes bool
	visit   func(bit, width int) // only set in tests; nil is not called
}

// visitField visits an unsigned number or a flag, given by its width in bits. The number starts at a bit of a byte,
// counted from the most significant bit.
func visitField[T ~uint8 | ~uint16 | ~uint32 | ~uint64](c *codec, at, bit, width int, v *T) {
	first := at*8 + bit
	if c.visit != nil {
		c.visit(first, width)
	}
	if c.encodes {
		if width < 64 && uint64(*v)>>width != 0 {
			panic(fmt.Sprintf("msg: %d does not fit into the %d bits of the field at byte %d", *v, width, at))
		}
		for i := range width {
			if uint64(*v)>>(width-1-i)&1 != 0 {
				c.b[(first+i)/8] |= 0x80 >> ((first + i) % 8)
			}
		}
		return
	}
	var x uint64
	for i := range width {
		x = x<<1 | uint64(c.b[(first+i)/8]>>(7-(first+i)%8)&1)
	}
	*v = T(x)
}

func visitFlag(c *codec, at, bit int, v *bool) {
	var x uint8
	if *v {
		x = 1
	}
	visitField(c, at, bit, 1, &x)
	*v = x != 0
}

// visitBytes visits a field of a fixed length.
func (c *codec) visitBytes(at int, v []byte) {
	if c.visit != nil {
		c.visit(at*8, len(v)*8)
	}
	if c.encodes {
		copy(c.b[at:], v)
	} else {
		copy(v, c.b[at:])
	}
}

// visitData visits private data of up to n bytes. Shorter data are padded with zeros, because the length is not
// transmitted.
func (c *codec) visitData(at, n int, v *[]byte) {
	if c.visit != nil {
		c.visit(at*8, n*8)
	}
	if c.encodes {
		if len(*v) > n {
			panic(fmt.Sprintf("msg: %d bytes of data exceed %d", len(*v), n))
		}
		copy(c.b[at:], *v)
	} else {
		*v = append([]byte(nil), c.b[at:at+n]...)
	}
}
