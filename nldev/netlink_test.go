package nldev

import (
	"encoding/binary"
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// A parsedMessage is one netlink message of an answer.
type parsedMessage struct {
	typ, flags uint16
	seq, port  uint32
	payload    []byte
}

// A parsedAttr is one attribute. nested is its NLA_F_NESTED flag.
type parsedAttr struct {
	typ    int
	nested bool
	data   []byte
}

// parseDatagram splits a datagram into messages. parseDatagram is strict: nothing may be left over, and padding is
// zero.
func parseDatagram(b []byte) ([]parsedMessage, error) {
	var out []parsedMessage
	if len(b) == 0 {
		return nil, fmt.Errorf("datagram: got 0 bytes, want a message")
	}
	for len(b) > 0 {
		if len(b) < headerSize {
			return nil, fmt.Errorf("%d bytes after the last message", len(b))
		}
		size := int(binary.NativeEndian.Uint32(b))
		if size < headerSize || align(size) > len(b) {
			return nil, fmt.Errorf("message of %d bytes in %d", size, len(b))
		}
		for _, pad := range b[size:align(size)] {
			if pad != 0 {
				return nil, fmt.Errorf("padding %#x", pad)
			}
		}
		out = append(out, parsedMessage{
			typ:     binary.NativeEndian.Uint16(b[4:]),
			flags:   binary.NativeEndian.Uint16(b[6:]),
			seq:     binary.NativeEndian.Uint32(b[8:]),
			port:    binary.NativeEndian.Uint32(b[12:]),
			payload: b[headerSize:size],
		})
		b = b[align(size):]
	}
	return out, nil
}

// nestedAttrs lists the attributes with a payload of attributes.
var nestedAttrs = map[int]bool{
	attrResSummary: true, attrResSummaryEntry: true, attrResQP: true, attrResQPEntry: true, attrResCMID: true,
	attrResCMIDEntry: true, attrResCQ: true, attrResCQEntry: true, attrResMR: true, attrResMREntry: true,
	attrResPD: true, attrResPDEntry: true, attrResCTX: true, attrResCTXEntry: true, attrResSRQ: true,
	attrResSRQEntry: true, attrStatHwcounters: true, attrStatHwcounterEntry: true, attrStatCounter: true,
	attrStatCounterEntry: true,
}

// parseAttrs splits a payload into attributes. It checks each attribute, and attributes in tables to any depth,
// against the policy of its type.
func parseAttrs(b []byte) ([]parsedAttr, error) {
	var out []parsedAttr
	for len(b) > 0 {
		if len(b) < attrSize {
			return nil, fmt.Errorf("%d bytes after the last attribute", len(b))
		}
		size := int(binary.NativeEndian.Uint16(b))
		if size < attrSize || align(size) > len(b) {
			return nil, fmt.Errorf("attribute of %d bytes in %d", size, len(b))
		}
		raw := binary.NativeEndian.Uint16(b[2:])
		a := parsedAttr{int(raw & attrTypeMask), raw&attrFlagNested != 0, b[attrSize:size]}
		if a.typ == attrUnspec || a.typ >= attrCount {
			return nil, fmt.Errorf("attribute type %d", a.typ)
		}
		p := attrPolicies[a.typ]
		switch {
		case p.kind.intSize() != 0 && len(a.data) != p.kind.intSize():
			return nil, fmt.Errorf("attribute %d has %d bytes", a.typ, len(a.data))
		case p.kind == kindString && strings.IndexByte(string(a.data), 0) != len(a.data)-1:
			return nil, fmt.Errorf("attribute %d is the string %q", a.typ, a.data)
		case p.kind == kindNested:
			if !nestedAttrs[a.typ] {
				return nil, fmt.Errorf("attribute %d is no table of an answer", a.typ)
			}
			if _, err := parseAttrs(a.data); err != nil {
				return nil, fmt.Errorf("table %d: %w", a.typ, err)
			}
		}
		out = append(out, a)
		b = b[align(size):]
	}
	return out, nil
}

// formatAttrs writes attributes in a compact form: integers as numbers, strings in quotes, tables in braces (in
// brackets with NLA_F_NESTED), and other payloads in hexadecimal. formatAttrs writes a type by its name in attrNames.
func formatAttrs(b []byte) string {
	list, err := parseAttrs(b)
	if err != nil {
		return "error: " + err.Error()
	}
	var words []string
	for _, a := range list {
		name := strings.TrimPrefix(strings.TrimPrefix(attrHeaderName(a.typ), "RDMA_NLDEV_"), "ATTR_")
		value := fmt.Sprintf("%x", a.data)
		switch {
		case nestedAttrs[a.typ] && a.nested:
			value = "[" + formatAttrs(a.data) + "]"
		case nestedAttrs[a.typ]:
			value = "{" + formatAttrs(a.data) + "}"
		case attrPolicies[a.typ].kind == kindString:
			value = fmt.Sprintf("%q", a.data[:len(a.data)-1])
		case len(a.data) == 1:
			value = fmt.Sprint(a.data[0])
		case len(a.data) == 4:
			value = fmt.Sprint(binary.NativeEndian.Uint32(a.data))
		case len(a.data) == 8:
			value = fmt.Sprint(binary.NativeEndian.Uint64(a.data))
		}
		words = append(words, name+"="+value)
	}
	return strings.Join(words, " ")
}

// attrHeaderName returns the name of an attribute in rdma_netlink.h.
func attrHeaderName(typ int) string {
	for _, a := range attrNames {
		if a.value == typ {
			return a.name
		}
	}
	return fmt.Sprint(typ)
}

const (
	testSeq  = 0x1234
	testPort = 4711
)

// defaultSocket is a socket with the default settings.
var defaultSocket = Socket{PortID: testPort}

// newMessage returns a message of the family NLDEV.
func newMessage(cmd, flags uint16, attrs ...[]byte) []byte {
	b := make([]byte, headerSize)
	for _, a := range attrs {
		b = append(b, a...)
	}
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], clientNldev<<clientShift|cmd)
	binary.NativeEndian.PutUint16(b[6:], flags|flagRequest)
	binary.NativeEndian.PutUint32(b[8:], testSeq)
	return b
}

// newAttr returns an attribute with its padding.
func newAttr(typ uint16, payload []byte) []byte {
	b := make([]byte, align(attrSize+len(payload)))
	binary.NativeEndian.PutUint16(b, uint16(attrSize+len(payload)))
	binary.NativeEndian.PutUint16(b[2:], typ)
	copy(b[attrSize:], payload)
	return b
}

func newAttrU8(typ uint16, v uint8) []byte { return newAttr(typ, []byte{v}) }

func newAttrU32(typ uint16, v uint32) []byte {
	return newAttr(typ, binary.NativeEndian.AppendUint32(nil, v))
}

func newTextAttr(typ uint16, s string) []byte { return newAttr(typ, append([]byte(s), 0)) }

// describeAnswers describes the answers to a request, one line for each message. "--" separates datagrams.
// describeAnswers checks the sequence number, the address and the flags of each.
func describeAnswers(t testing.TB, answers [][]byte) []string {
	t.Helper()
	var out []string
	for i, b := range answers {
		if i > 0 {
			out = append(out, "--")
		}
		list, err := parseDatagram(b)
		if err != nil {
			t.Fatalf("parse datagram %d: got %v, want success", i, err)
		}
		for _, m := range list {
			if m.seq != testSeq || m.port != testPort {
				t.Errorf("message: got sequence number %#x and port %d, want %#x and %d", m.seq, m.port, testSeq, testPort)
			}
			out = append(out, m.String())
		}
	}
	return out
}

// String describes the message by its command, "multi" in a dump, and its attributes; or by "done", "ack" or
// "error", and the errno.
func (m parsedMessage) String() string {
	switch m.typ {
	case typeDone:
		if m.flags != flagMulti || len(m.payload) != 4 {
			return fmt.Sprintf("done with flags %#x and %d bytes", m.flags, len(m.payload))
		}
		return fmt.Sprintf("done %d", int32(binary.NativeEndian.Uint32(m.payload)))
	case typeError:
		errno := int32(binary.NativeEndian.Uint32(m.payload))
		echo := m.payload[4:]
		capped := m.flags == flagCapped && len(echo) == headerSize
		full := m.flags == 0 && len(echo) == int(binary.NativeEndian.Uint32(echo))
		switch {
		case errno == 0 && capped:
			return "ack"
		case errno != 0 && full:
			return "error " + syscall.Errno(-errno).Error()
		case errno != 0 && capped:
			return "capped error " + syscall.Errno(-errno).Error()
		}
		return fmt.Sprintf("error %d with flags %#x and %d bytes of request", errno, m.flags, len(echo))
	}
	text := fmt.Sprintf("%d/%d", m.typ>>clientShift, m.typ&commandMask)
	switch m.flags {
	case 0:
	case flagMulti:
		text += " multi"
	default:
		text += fmt.Sprintf(" flags %#x", m.flags)
	}
	return text + " " + formatAttrs(m.payload)
}
