package rblk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
)

// protocolVersion is the common version of offer, login, request and response.
const protocolVersion = 2

// sessionOffer is the private data of an initiator's connection request, offerLen bytes, big-endian:
//
//	0 "rblk"   4 version (2)   6 zero (2)   8 depth (4)   12 maxIO (4)
type sessionOffer struct {
	depth int // maximum number of outstanding requests
	maxIO int // maximum number of bytes of one request
}

const (
	offerLen   = 16
	offerMagic = "rblk"
)

func (o sessionOffer) bytes() []byte {
	b := binary.BigEndian.AppendUint32(append([]byte(offerMagic), 0, protocolVersion, 0, 0), uint32(o.depth))
	return binary.BigEndian.AppendUint32(b, uint32(o.maxIO))
}

// parseOffer checks the format of an offer, and that its limits allow at least one request.
func parseOffer(b []byte) (sessionOffer, error) {
	if len(b) < offerLen || string(b[:4]) != offerMagic {
		return sessionOffer{}, errors.New("the offer is not from a disk")
	}
	if v := binary.BigEndian.Uint16(b[4:]); v != protocolVersion {
		return sessionOffer{}, fmt.Errorf("offer has version %d, want %d", v, protocolVersion)
	}
	depth, maxIO := binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])
	if depth < 1 || maxIO < 512 {
		return sessionOffer{}, fmt.Errorf("offer of depth %d and request size %d is too small", depth, maxIO)
	}
	return sessionOffer{int(min(depth, maxDepth)), int(min(maxIO, maxMaxIO))}, nil
}

// Tags have 16 bits. The limit of a request is far below the maximum message length.
const (
	maxDepth = 1 << 15
	maxMaxIO = 1 << 30
)

// sessionRefusal is the target's rejection of an offer or a login.
type sessionRefusal struct {
	why   string
	retry bool // true if the initiator may try again
}

func (r *sessionRefusal) Error() string { return "the target refuses: " + r.why }

// bytes encodes a refusal as private data: a byte that is 1 for a temporary refusal, and the reason.
func (r *sessionRefusal) bytes() []byte {
	b := []byte{0}
	if r.retry {
		b[0] = 1
	}
	return append(b, r.why...)
}

func parseRefusal(b []byte) (*sessionRefusal, bool) {
	b = bytes.TrimRight(b, "\x00")
	if len(b) < 2 || b[0] > 1 {
		return nil, false
	}
	return &sessionRefusal{string(b[1:]), b[0] == 1}, true
}

// loginMessage is the first message of an initiator, encoded in JSON.
type loginMessage struct {
	Initiator string `json:"initiator"` // constant for the lifetime of a Disk
	Epoch     uint64 `json:"epoch"`     // increases with each login of an initiator
	Export    string `json:"export"`
}

// welcomeMessage is the target's reply to a login.
type welcomeMessage struct {
	Refused string `json:"refused,omitempty"` // reason for a refusal
	Retry   bool   `json:"retry,omitempty"`   // true for a temporary refusal
	Store   string `json:"store,omitempty"`   // ID of the store, see Identifier
	Cache   string `json:"cache,omitempty"`   // Cache of the store, see Cacher
	Size    int64  `json:"size"`              // in bytes
	Depth   int    `json:"depth"`
	MaxIO   int    `json:"max_io"`
}

// maxHandshakeLen limits the length of a login or a welcome.
const maxHandshakeLen = 4096

type requestOpcode uint8

const (
	opRead requestOpcode = 1 + iota
	opWrite
	opSync
)

func (o requestOpcode) String() string {
	switch o {
	case opRead:
		return "read"
	case opWrite:
		return "write"
	case opSync:
		return "sync"
	}
	return fmt.Sprintf("op(%d)", uint8(o))
}

// request is a message of the initiator, requestLen bytes, big-endian:
//
//	0 op   1 zero   2 tag (2)   4 length (4)   8 offset (8)   16 address (8)   24 rkey (4)   28 zero (4)
type request struct {
	op     requestOpcode
	tag    uint16
	length uint32
	offset uint64
	addr   uint64 // memory of the initiator for the data
	rkey   uint32
}

const requestLen = 32

func (r request) encodeTo(b []byte) {
	clear(b[:requestLen])
	b[0] = byte(r.op)
	binary.BigEndian.PutUint16(b[2:], r.tag)
	binary.BigEndian.PutUint32(b[4:], r.length)
	binary.BigEndian.PutUint64(b[8:], r.offset)
	binary.BigEndian.PutUint64(b[16:], r.addr)
	binary.BigEndian.PutUint32(b[24:], r.rkey)
}

// parseRequest checks the format of a request, and that its tag and length are within the negotiated limits.
func parseRequest(b []byte, depth, maxIO int) (request, error) {
	if len(b) != requestLen {
		return request{}, fmt.Errorf("request of %d bytes, want %d", len(b), requestLen)
	}
	r := request{
		op: requestOpcode(b[0]), tag: binary.BigEndian.Uint16(b[2:]), length: binary.BigEndian.Uint32(b[4:]),
		offset: binary.BigEndian.Uint64(b[8:]), addr: binary.BigEndian.Uint64(b[16:]), rkey: binary.BigEndian.Uint32(b[24:]),
	}
	switch {
	case r.op < opRead || r.op > opSync || b[1] != 0 || binary.BigEndian.Uint32(b[28:]) != 0:
		return r, fmt.Errorf("unknown request %v", r.op)
	case int(r.tag) >= depth:
		return r, fmt.Errorf("request with tag %d, want less than %d", r.tag, depth)
	case uint64(r.length) > uint64(maxIO):
		return r, fmt.Errorf("request for %d bytes exceeds %d", r.length, maxIO)
	case r.op == opSync && r.length != 0:
		return r, errors.New("sync with a length")
	}
	return r, nil
}

// responseStatus is the result of a request in a response.
type responseStatus uint16

const (
	statusOK responseStatus = iota
	statusIO
	statusInvalid
	statusNoSpace
	statusReadOnly
)

var statusErrno = map[responseStatus]syscall.Errno{
	statusIO: syscall.EIO, statusInvalid: syscall.EINVAL, statusNoSpace: syscall.ENOSPC, statusReadOnly: syscall.EROFS,
}

// statusOf returns the status that is closest to an error of a store.
func statusOf(err error) responseStatus {
	if err == nil {
		return statusOK
	}
	for _, s := range []responseStatus{statusInvalid, statusNoSpace, statusReadOnly} {
		if errors.Is(err, statusErrno[s]) {
			return s
		}
	}
	return statusIO
}

// err returns nil for statusOK, and an I/O error for an unknown status.
func (s responseStatus) err() error {
	if s == statusOK {
		return nil
	}
	if e, ok := statusErrno[s]; ok {
		return e
	}
	return syscall.EIO
}

// response is a message of the target, responseLen bytes: tag (2), status (2), zero (4).
type response struct {
	tag    uint16
	status responseStatus
}

const responseLen = 8

func (r response) encodeTo(b []byte) {
	clear(b[:responseLen])
	binary.BigEndian.PutUint16(b, r.tag)
	binary.BigEndian.PutUint16(b[2:], uint16(r.status))
}

func parseResponse(b []byte, depth int) (response, error) {
	if len(b) != responseLen {
		return response{}, fmt.Errorf("response of %d bytes, want %d", len(b), responseLen)
	}
	r := response{tag: binary.BigEndian.Uint16(b), status: responseStatus(binary.BigEndian.Uint16(b[2:]))}
	if int(r.tag) >= depth || binary.BigEndian.Uint32(b[4:]) != 0 {
		return r, fmt.Errorf("response with tag %d, want less than %d", r.tag, depth)
	}
	return r, nil
}
