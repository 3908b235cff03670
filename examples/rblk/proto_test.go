package rblk

import (
	"strings"
	"testing"
)

func TestParseRequestChecksLimits(t *testing.T) {
	good := request{op: opWrite, tag: 3, length: 4096, offset: 1 << 40, addr: 0xfedcba9876543210, rkey: 0x12345678}
	for _, c := range []struct {
		name  string
		spoil func(b []byte) []byte
		says  string
	}{
		{"as made", func(b []byte) []byte { return b }, ""},
		{"too short", func(b []byte) []byte { return b[:31] }, "31 bytes"},
		{"no operation", func(b []byte) []byte { b[0] = 0; return b }, "unknown request op(0)"},
		{"an operation to come", func(b []byte) []byte { b[0] = 4; return b }, "unknown request op(4)"},
		{"flags", func(b []byte) []byte { b[1] = 1; return b }, "unknown request"},
		{"reserved bytes", func(b []byte) []byte { b[31] = 1; return b }, "unknown request"},
		{"a tag that was not agreed", func(b []byte) []byte { b[3] = 4; return b }, "tag 4, want less than 4"},
		{"too long", func(b []byte) []byte { b[4] = 1; return b }, "exceeds 4096"},
		{"one byte too long", func(b []byte) []byte { b[7] = 1; return b }, "4097 bytes exceeds 4096"},
		{"a sync of something", func(b []byte) []byte { b[0] = byte(opSync); return b }, "sync with a length"},
	} {
		b := make([]byte, requestLen)
		good.encodeTo(b)
		r, err := parseRequest(c.spoil(b), 4, 4096)
		switch {
		case c.says == "" && (err != nil || r != good):
			t.Errorf("%s: %+v, %v", c.name, r, err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestParseResponseChecksLimits(t *testing.T) {
	b := make([]byte, responseLen)
	want := response{tag: 7, status: statusNoSpace}
	want.encodeTo(b)
	if r, err := parseResponse(b, 8); r != want || err != nil {
		t.Errorf("parseResponse: got %+v, %v, want the encoded response", r, err)
	}
	if _, err := parseResponse(b, 7); err == nil {
		t.Error("a tag beyond the negotiated depth")
	}
	if _, err := parseResponse(b[:7], 8); err == nil {
		t.Error("too short")
	}
}

func TestStatusMapsToErrno(t *testing.T) {
	for s := statusOK; s < 100; s++ {
		err := s.err()
		if got := statusOf(err); s <= statusReadOnly && got != s || s > statusReadOnly && got != statusIO {
			t.Errorf("status %d: got error %v, which has status %d", s, err, got)
		}
	}
}

// FuzzParse checks that accepted input is within the negotiated limits, and that encoding it gives the same bytes.
func FuzzParse(f *testing.F) {
	b := make([]byte, requestLen)
	request{op: opRead, tag: 1, length: 512, addr: 1, rkey: 2}.encodeTo(b)
	f.Add(b)
	response{tag: 1}.encodeTo(b)
	f.Add(b[:responseLen])
	f.Add(sessionOffer{16, 4096}.bytes())
	f.Add((&sessionRefusal{"no", true}).bytes())
	f.Fuzz(func(t *testing.T, in []byte) {
		if r, err := parseRequest(in, 16, 4096); err == nil {
			out := make([]byte, requestLen)
			if r.encodeTo(out); string(out) != string(in) || r.tag >= 16 || r.length > 4096 {
				t.Errorf("%x is taken for %+v", in, r)
			}
		}
		if o, err := parseOffer(in); err == nil && (o.depth < 1 || o.depth > maxDepth || o.maxIO < 512 ||
			o.maxIO > maxMaxIO) {
			t.Errorf("%x is taken for %+v", in, o)
		}
		if r, ok := parseRefusal(in); ok && r.why == "" {
			t.Errorf("%x is taken for %+v", in, r)
		}
		if r, err := parseResponse(in, 16); err == nil {
			out := make([]byte, responseLen)
			if r.encodeTo(out); string(out) != string(in) || r.tag >= 16 {
				t.Errorf("%x is taken for %+v", in, r)
			}
		}
	})
}
