package ctl

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net/netip"
	"runtime/metrics"
	"strings"
	"syscall"
	"testing"

	"verbena/internal/fault"
	"verbena/internal/qpinfo"
)

// receivedMessageTypes lists the kinds of messages, with the sizes that their receivers accept. For responses the fuzz
// target uses a smaller size, for speed.
var receivedMessageTypes = []struct {
	name string
	most uint32
	make func() any
}{
	{"request", MaxRequest, func() any { return new(Request) }},
	{"response", MaxRequest, func() any { return new(Response) }},
	{"help", MaxRequest, func() any { return new(HelpRequest) }},
	{"help answer", MaxHelpAnswer, func() any { return new(HelpAnswer) }},
	{"capture end", MaxRequest, func() any { return new(CaptureEnd) }},
}

// encodeMessage returns an encoded message.
func encodeMessage(body []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// allocatedBytes returns the number of bytes that f allocates. Other goroutines may increase the number.
func allocatedBytes(f func()) uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	before := s[0].Value.Uint64()
	f()
	metrics.Read(s)
	return s[0].Value.Uint64() - before
}

// maxFactor and maxFixed limit the memory that decode allocates, including garbage, to maxFactor times the bytes
// read plus maxFixed. Each comma in an array may create a ContextInfo, and arrays grow by copying.
const (
	maxFactor = 1000
	maxFixed  = 1 << 20
)

// FuzzDecode decodes the bytes of a hostile peer, in both directions.
func FuzzDecode(f *testing.F) {
	for _, v := range []any{
		&Request{Protocol: ProtocolVersion, Op: OpInfo},
		&Request{Protocol: ProtocolVersion, Op: OpFaultAdd,
			Fault: &FaultRule{Dev: "rxe0", Rule: fault.Rule{Drop: 0.5, Peer: netip.MustParseAddr("::1")}}},
		&Request{Protocol: ProtocolVersion, Op: OpAttach, Attach: &Attach{Args: []string{"a", "b"}, Trace: true}},
		&Request{Protocol: ProtocolVersion, Op: OpDevReset, Reset: &DevReset{Name: "rxe0", At: DevCompletion}},
		&Response{Info: &ServiceInfo{PID: 1}},
		&Response{Error: "no device", Errno: syscall.ENODEV},
		&Response{Contexts: []ContextInfo{{MRs: []MRInfo{{LKey: 1}}, QPs: []QPInfo{{Num: 17}}}}, Profile: []byte("x")},
		&Response{Stats: []StatInfo{{Dev: "rxe0", Counters: map[string]uint64{"a": 1}}},
			Trace: &QPTraceInfo{Trace: qpinfo.Trace{Events: []qpinfo.Event{{Event: "send"}}}}},
		&HelpRequest{MemOf: 1}, &HelpAnswer{Error: "no", Errno: 1}, &CaptureEnd{Packets: 1},
	} {
		b, err := json.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(encodeMessage(b))
	}
	f.Add([]byte{255, 255, 255, 255})
	f.Add([]byte{0, 0, 0, 0})
	f.Add(encodeMessage([]byte(`{"Contexts":[0,0,null,{}]}`)))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, kind := range receivedMessageTypes {
			r := bytes.NewReader(b)
			v := kind.make()
			var err error
			n := allocatedBytes(func() { err = decodeMessage(r, v, kind.most) })
			read := len(b) - r.Len()
			if read > lengthFieldSize+int(kind.most) {
				t.Errorf("decode of %s: got %d bytes read, want at most %d", kind.name, read, lengthFieldSize+kind.most)
			}
			if most := uint64(maxFixed + maxFactor*read); n > most {
				t.Errorf("decode of %s: got %d bytes of memory for a message of %d, want at most %d", kind.name, n, read, most)
			}
			if err != nil {
				continue
			}
			if size := binary.LittleEndian.Uint32(b); read != lengthFieldSize+int(size) {
				t.Errorf("decode of %s: got %d bytes read, want %d", kind.name, read, lengthFieldSize+size)
			}
			again := kind.make()
			body, err := json.Marshal(v)
			if err == nil {
				err = decodeMessage(bytes.NewReader(encodeMessage(body)), again, MaxResponse)
			}
			second, err2 := json.Marshal(again)
			if err := errors.Join(err, err2); err != nil || !bytes.Equal(body, second) {
				t.Errorf("%s: got another message after encoding %s: %s, %v", kind.name, body, second, err)
			}
		}
	})
}

// TestDecodeTakesLittleMemory tests that any message to a service takes little memory of the service.
func TestDecodeTakesLittleMemory(t *testing.T) {
	const maxMemory = 8 << 20 // garbage included
	fill := func(before, each, after string, most int) []byte {
		n := (most - len(before) - len(after)) / len(each)
		return encodeMessage([]byte(before + strings.TrimSuffix(strings.Repeat(each, n), ",") + after))
	}
	for name, b := range map[string][]byte{
		"arguments": fill(`{"Attach":{"Args":[`, `"",`, `]}}`, MaxRequest),
		"addresses": fill(`{"Link":{"addrs":[`, `0,`, `]}}`, MaxRequest),
		"unknown":   fill(`{"X":[`, `[],`, `]}`, MaxRequest),
		"repeated":  fill(`{`, `"Link":{},`, `}`, MaxRequest),
		"announced": {0, 0, 1, 0, '{'},
	} {
		if n := allocatedBytes(func() { _ = decodeMessage(bytes.NewReader(b), new(Request), MaxRequest) }); n > maxMemory {
			t.Errorf("request of %s: got %d bytes of memory, want at most %d", name, n, maxMemory)
		}
	}
	b := fill(`{"Contexts":[`, `0,`, `]}`, MaxHelpAnswer)
	if n := allocatedBytes(func() { _ = decodeMessage(bytes.NewReader(b), new(HelpAnswer), MaxHelpAnswer) }); n > 64<<10 {
		t.Errorf("help answer: got %d bytes of memory, want at most %d", n, 64<<10)
	}
	announced := []byte{0, 0, 0, 4} // announces 64 MiB that never arrive
	if n := allocatedBytes(func() {
		_ = decodeMessage(bytes.NewReader(announced), new(Response),
			MaxResponse)
	}); n > 64<<10 {
		t.Errorf("response that does not come: got %d bytes of memory, want at most %d", n, 64<<10)
	}
}
