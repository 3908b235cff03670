package uverbs

import (
	"encoding/binary"
	"syscall"
	"testing"

	"verbena/uapi"
)

// TestQueryPortSpeed tests the effective speed of a port, and the error for a port that the device does not have.
func TestQueryPortSpeed(t *testing.T) {
	x := newStateProgram(t)
	for port, want := range map[uint64]syscall.Errno{1: 0, 0: syscall.EINVAL, 2: syscall.EINVAL, 1 << 32: syscall.EINVAL} {
		speed := x.allocMem(8)[:8]
		_, err := x.callMethod(uapi.ObjectDevice, uapi.MethodQueryPortSpeed,
			inlineAttr(uapi.AttrQueryPortSpeedPortNum, 8, port), outAttr(uapi.AttrQueryPortSpeedResp, speed))
		wantErrno(t, "query the speed", err, want)
		if n := binary.NativeEndian.Uint64(speed); err == nil && n != 25 {
			t.Errorf("speed of port %d: got %d, want 25 times 100 Mb/s", port, n)
		}
	}
	if v, ok := CanonicalVerb("query_port_speed"); !ok {
		t.Errorf("verb of a fault rule: got no verb %s, want one", v)
	}
}

// TestQueryPortResponse tests the speed in both responses. A speed above 255 is only in the extended response.
func TestQueryPortResponse(t *testing.T) {
	x := newStateProgram(t)
	b := x.allocMem(uapi.SizeOf[uapi.QueryPortRespEx]())[:uapi.SizeOf[uapi.QueryPortRespEx]()]
	_, err := x.callMethod(uapi.ObjectDevice, uapi.MethodQueryPort, inlineAttr(uapi.AttrQueryPortPortNum, 8, 1),
		outAttr(uapi.AttrQueryPortResp, b))
	if err != nil {
		t.Fatal(err)
	}
	if r, _ := uapi.Decode[uapi.QueryPortRespEx](b); r.LegacyResp.ActiveSpeed != 1 || r.ActiveSpeedEx != 1 {
		t.Errorf("speed: got %d and %d, want 1 and 1", r.LegacyResp.ActiveSpeed, r.ActiveSpeedEx)
	}
}
