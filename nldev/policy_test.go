package nldev

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestAttributeBoundsAreChecked checks attributes at and beyond the bounds of their kinds. SYS_GET parses leniently and
// reports the errno. DELLINK parses strictly and reports EINVAL.
func TestAttributeBoundsAreChecked(t *testing.T) {
	zeros := func(typ uint16, n int) []byte { return newAttr(typ, make([]byte, n)) }
	text := func(typ uint16, n int) []byte { return newTextAttr(typ, strings.Repeat("x", n)) }
	const (
		ok    = "ok"
		inval = einval
		short = erange
	)
	for _, test := range []struct {
		name            string
		attr            []byte
		lenient, strict string
	}{
		{"u8 of 0 bytes", zeros(attrDevDIM, 0), short, inval},
		{"u8 of 1 byte", zeros(attrDevDIM, 1), ok, ok},
		{"u8 of 2 bytes", zeros(attrDevDIM, 2), ok, inval},
		{"u32 of 3 bytes", zeros(attrPortIndex, 3), short, inval},
		{"u32 of 4 bytes", zeros(attrPortIndex, 4), ok, ok},
		{"u32 of 5 bytes", zeros(attrPortIndex, 5), ok, inval},
		{"u64 of 7 bytes", zeros(attrNodeGUID, 7), short, inval},
		{"u64 of 8 bytes", zeros(attrNodeGUID, 8), ok, ok},
		{"u64 of 9 bytes", zeros(attrNodeGUID, 9), ok, inval},

		{"longest string", text(attrDevName, nameSize), ok, ok},
		{"string beyond the longest", text(attrDevName, nameSize+1), inval, inval},
		{"string without NUL", newAttr(attrDevName, []byte("rxe0")), inval, inval},
		{"longest string without NUL", newAttr(attrDevName, bytes.Repeat([]byte("x"), nameSize)), inval, inval},
		{"longest string with bytes after its NUL", zeros(attrDevName, nameSize+1), ok, ok},
		{"string with too many bytes after its NUL", zeros(attrDevName, nameSize+2), short, inval},
		{"string without payload", zeros(attrDevName, 0), inval, inval},
		{"string of any length", text(attrParentName, 1000), ok, ok},

		{"empty table", zeros(attrResQP|attrFlagNested, 0), ok, ok},
		{"table of 3 bytes", zeros(attrResQP|attrFlagNested, attrSize-1), short, inval},
		{"table of 4 bytes", zeros(attrResQP|attrFlagNested, attrSize), ok, ok},
		{"table without the flag", zeros(attrResQP, attrSize), ok, inval},
		{"number with the flag of a table", zeros(attrPortIndex|attrFlagNested, 4), ok, inval},

		{"address of 127 bytes", zeros(attrResSrcAddr, sockaddrSize-1), short, inval},
		{"address of 128 bytes", zeros(attrResSrcAddr, sockaddrSize), ok, inval},
		{"no policy", zeros(attrCapFlags, 8), ok, inval},
		{"binary of 0 bytes", zeros(attrResRaw, 0), ok, ok},
		{"binary of 9 bytes", zeros(attrResRaw, 9), ok, ok},

		{"type 0", zeros(attrUnspec, 0), ok, inval},
		{"last type", zeros(attrCount-1, 1), ok, ok},
		{"type beyond the last", zeros(attrCount, 1), ok, inval},
		{"length below the header", []byte{attrSize - 1, 0, attrDevDIM, 0}, ok, inval},
		{"length beyond the message", []byte{attrSize + 1, 0, attrDevDIM, 0}, ok, inval},
		{"header of 3 bytes", []byte{attrSize, 0, attrDevDIM}, ok, inval},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := describeAnswers(t, defaultSocket.Answer(newTestSource(), nil, newMessage(cmdSysGet, 0, test.attr)))
			if len(got) == 1 && strings.HasPrefix(got[0], "5/6 ") {
				got[0] = ok
			}
			if want := []string{test.lenient}; !slices.Equal(got, want) {
				t.Errorf("SYS_GET: got %q, want %q", got, want)
			}
			admin := &fakeAdmin{}
			got = describeAnswers(t, defaultSocket.Answer(newTestSource(), admin,
				newMessage(cmdDelLink, flagAck, devRxe, test.attr)))
			want, calls := []string{test.strict}, []string(nil)
			if test.strict == ok {
				want, calls = []string{"ack"}, []string{"delete rxe0"}
			}
			if !slices.Equal(got, want) || !slices.Equal(admin.calls, calls) {
				t.Errorf("DELLINK: got %q and calls %q, want %q and %q", got, admin.calls, want, calls)
			}
		})
	}
}

// TestMalformedAttributeIsRejected checks that each command rejects a malformed attribute that accompanies its required
// attributes.
func TestMalformedAttributeIsRejected(t *testing.T) {
	short := newAttr(attrDevDIM, nil)
	res, mode, qp := newAttrU32(attrStatRes, attrResQP), newAttrU32(attrStatMode,
		counterModeAuto), newAttrU32(attrResLQPN, 17)
	need := map[uint16][][]byte{
		cmdGet:          {devRxe},
		cmdSet:          {devRxe},
		cmdNewLink:      {newTextAttr(attrDevName, "a"), newTextAttr(attrLinkType, "rxe"), newTextAttr(attrNdevName, "lo")},
		cmdDelLink:      {devRxe},
		cmdPortGet:      {devRxe, port1},
		cmdSysSet:       {newAttrU8(attrSysNetnsMode, 1)},
		cmdResGet:       {devRxe},
		cmdResQPGet:     {devRxe, port1, qp},
		cmdResCMIDGet:   {devRxe, port1, newAttrU32(attrResCMIDN, 7)},
		cmdResCQGet:     {devRxe, newAttrU32(attrResCQN, 0)},
		cmdResMRGet:     {devRxe, newAttrU32(attrResMRN, 4)},
		cmdResPDGet:     {devRxe, newAttrU32(attrResPDN, 1)},
		cmdResCtxGet:    {devRxe, newAttrU32(attrResCTXN, 5)},
		cmdResSRQGet:    {devRxe, newAttrU32(attrResSRQN, 0)},
		cmdGetChardev:   {devRxe, newTextAttr(attrChardevType, "uverbs")},
		cmdStatSet:      {devRxe, port1, newAttr(attrStatHwcounters|attrFlagNested, nil)},
		cmdStatGet:      {devRxe, port1},
		cmdStatStatus:   {devRxe, port1},
		cmdResQPGetRaw:  nil, // never succeeds
		cmdResCQGetRaw:  nil,
		cmdResMRGetRaw:  nil,
		cmdResSRQGetRaw: nil,
		cmdStatDel:      nil,
		cmdNewDev:       nil,
		cmdDelDev:       nil,
		cmdSysGet:       nil, // covered by TestAttributeBoundsAreChecked
	}
	answer := func(cmd, flags uint16, attrs ...[]byte) []string {
		return describeAnswers(t, defaultSocket.Answer(newTestSource(), &fakeAdmin{}, newMessage(cmd, flags, attrs...)))
	}
	for cmd := range uint16(cmdCount) {
		attrs, known := need[cmd]
		if c := &commandTable[cmd]; (c.do != nil) != known {
			t.Errorf("command %d: got implemented %v and in this table %v, want equal values", cmd, c.do != nil, known)
		}
		if len(attrs) == 0 {
			continue
		}
		if got := answer(cmd, flagAck, attrs...); len(got) == 0 || got[len(got)-1] != "ack" {
			t.Errorf("command %d: got %q, want an acknowledgement", cmd, got)
		}
		if got := answer(cmd, flagAck, append(attrs, short)...); !slices.Equal(got, []string{einval}) {
			t.Errorf("command %d with a short attribute: got %q, want %q", cmd, got, einval)
		}
	}
	for name, attrs := range map[string][][]byte{
		"counter mode":   {devRxe, port1, res, mode, short},
		"counter of MRs": {devRxe, newAttrU32(attrStatRes, attrResMR), newAttrU32(attrResMRN, 4), short},
	} {
		if got := answer(cmdStatGet, 0, attrs...); !slices.Equal(got, []string{einval}) {
			t.Errorf("%s with a short attribute: got %q, want %q", name, got, einval)
		}
	}
}

// TestCounterCommandsRequireAttributes checks that each command for counters rejects requests that lack a required
// attribute, or name another kind of resource. The requests name a QP that does not exist, or a device without
// counters, so a request that passes the checks has another result.
func TestCounterCommandsRequireAttributes(t *testing.T) {
	qps, mrs := newAttrU32(attrStatRes, attrResQP), newAttrU32(attrStatRes, attrResMR)
	auto, counter, qp := newAttrU32(attrStatMode, counterModeAuto), newAttrU32(attrStatCounterID,
		1), newAttrU32(attrResLQPN, 1)
	for _, test := range []struct {
		name  string
		cmd   uint16
		attrs [][]byte
		want  string
	}{
		{"mode", cmdStatGet, [][]byte{devRxe, port1, qps, auto}, "5/17 " + rxe + "PORT_INDEX=1 STAT_MODE=0"},
		{"mode without STAT_MODE", cmdStatGet, [][]byte{devRxe, port1, qps}, einval},
		{"mode without port", cmdStatGet, [][]byte{devRxe, qps, auto}, einval},
		{"mode of PDs", cmdStatGet, [][]byte{devRxe, port1, newAttrU32(attrStatRes, attrResPD), auto}, einval},
		{"MR", cmdStatGet, [][]byte{devRxe, mrs, newAttrU32(attrResMRN, 4)}, "5/17 " + rxe + "RES_MRN=4"},
		{"status without counters", cmdStatStatus, [][]byte{devIB, port1}, einval},
		{"status without port", cmdStatStatus, [][]byte{devRxe}, einval},

		{"bind", cmdStatSet, [][]byte{devRxe, port1, qps, auto}, enotsup},
		{"bind without STAT_RES", cmdStatSet, [][]byte{devRxe, port1, auto}, einval},
		{"bind MRs", cmdStatSet, [][]byte{devRxe, port1, mrs, auto}, einval},
		{"optional counters without counters", cmdStatSet,
			[][]byte{devIB, port1, newAttr(attrStatHwcounters|attrFlagNested, nil)}, einval},

		{"unbind", cmdStatDel, [][]byte{devRxe, port1, qps, counter, qp}, enoent},
		{"unbind without STAT_RES", cmdStatDel, [][]byte{devRxe, port1, counter, qp}, einval},
		{"unbind without counter", cmdStatDel, [][]byte{devRxe, port1, qps, qp}, einval},
		{"unbind without QP", cmdStatDel, [][]byte{devRxe, port1, qps, counter}, einval},
		{"unbind MRs", cmdStatDel, [][]byte{devRxe, port1, mrs, counter, qp}, einval},
		{"unbind without port", cmdStatDel, [][]byte{devRxe, qps, counter, qp}, einval},
	} {
		t.Run(test.name, func(t *testing.T) {
			request := newMessage(test.cmd, 0, test.attrs...)
			got := describeAnswers(t, defaultSocket.Answer(newTestSource(), &fakeAdmin{}, request))
			if !slices.Equal(got, []string{test.want}) {
				t.Errorf("answer: got %q, want %q", got, test.want)
			}
		})
	}
}

// TestResourcesAreReportedForOwnPort checks that QPs and CM IDs are reported only for their own port.
func TestResourcesAreReportedForOwnPort(t *testing.T) {
	src := &fakeSource{devices: []Device{{Index: 3, Name: "rxe0", Ports: make([]Port, 2), Resources: Resources{
		QPs:   func() []QP { return []QP{{Num: 10}, {Num: 11, Port: 1}, {Num: 12, Port: 2}} },
		CMIDs: func() []CMID { return []CMID{{ID: 10}, {ID: 11, Port: 1}, {ID: 12, Port: 2}} },
	}}}}
	const other = "error resource temporarily unavailable"
	for _, k := range []struct {
		name    string
		cmd, id uint16
		match   string // the first attributes of the answer for an object of the port
	}{
		{"QP", cmdResQPGet, attrResLQPN, "5/10 " + rxe + "PORT_INDEX=%d"},
		{"raw QP", cmdResQPGetRaw, attrResLQPN, einval},
		{"CM ID", cmdResCMIDGet, attrResCMIDN, "5/11 " + rxe + "PORT_INDEX=%d"},
	} {
		for port := uint32(1); port <= 2; port++ {
			for id := uint32(10); id <= 12; id++ {
				want := other
				if id == 10+port {
					want = strings.ReplaceAll(k.match, "%d", fmt.Sprint(port))
				}
				request := newMessage(k.cmd, 0, devRxe, newAttrU32(attrPortIndex, port), newAttrU32(k.id, id))
				got := describeAnswers(t, defaultSocket.Answer(src, &fakeAdmin{}, request))
				if len(got) != 1 || !strings.HasPrefix(got[0], want) {
					t.Errorf("%s %d of port %d: got %q, want %s", k.name, id, port, got, want)
				}
			}
		}
	}
	for cmd, entry := range map[uint16]string{cmdResQPGet: "RES_QP_ENTRY=", cmdResCMIDGet: "RES_CM_ID_ENTRY="} {
		for _, test := range []struct {
			port uint32 // 0 for no port
			want int
		}{{0, 3}, {1, 1}, {2, 1}} {
			attrs := [][]byte{devRxe}
			if test.port != 0 {
				attrs = append(attrs, newAttrU32(attrPortIndex, test.port))
			}
			got := describeAnswers(t, defaultSocket.Answer(src, nil, newMessage(cmd, flagDump, attrs...)))
			if len(got) != 3 || got[2] != "done 0" || strings.Count(got[0], entry) != test.want ||
				strings.Contains(got[0], "PORT_INDEX=1") != (test.port != 2) ||
				strings.Contains(got[0], "PORT_INDEX=2") != (test.port != 1) {
				t.Errorf("command %d of port %d: got %q, want %d entries", cmd, test.port, got, test.want)
			}
		}
	}
}

// TestRefusalsReturnServiceErrno checks refusals that depend on the service: the errno of an Admin, sub-devices, and a
// service without a connection manager.
func TestRefusalsReturnServiceErrno(t *testing.T) {
	del := newMessage(cmdDelLink, 0, devRxe)
	for _, test := range []struct {
		err  error
		want int32
	}{
		{syscall.ENODEV, -int32(syscall.ENODEV)},
		{fmt.Errorf("delete: %w", syscall.Errno(4095)), -4095},
		{syscall.Errno(4096), -int32(syscall.EINVAL)}, // the kernel's error pointers do not cover this value
	} {
		answers := defaultSocket.Answer(newTestSource(), &fakeAdmin{err: test.err}, del)
		if len(answers) != 1 {
			t.Fatalf("%v: got %d answers, want 1", test.err, len(answers))
		}
		if got := int32(binary.NativeEndian.Uint32(answers[0][headerSize:])); got != test.want {
			t.Errorf("%v: got %d, want %d", test.err, got, test.want)
		}
	}

	noCM := newTestSource()
	noCM.cm = Chardev{}
	for _, test := range []struct {
		name    string
		src     Source
		request []byte
		want    string
	}{
		{"rdma_cm without a manager", noCM, newMessage(cmdGetChardev, 0, newTextAttr(attrChardevType, "rdma_cm")), enotsup},
		{"delete unknown sub-device", newTestSource(), newMessage(cmdDelDev, 0, devNone), einval},
		{"delete sub-device without index", newTestSource(), newMessage(cmdDelDev, 0), einval},
		{"no command, privileged", newTestSource(), newMessage(cmdMonitor, 0), einval},
		{"no command, dump", newTestSource(), newMessage(cmdMonitor, flagDump), einval},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := describeAnswers(t, defaultSocket.Answer(test.src, &fakeAdmin{}, test.request))
			if !slices.Equal(got, []string{test.want}) {
				t.Errorf("answer: got %q, want %q", got, test.want)
			}
		})
	}
}
