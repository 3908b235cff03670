package nldev

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// A fakeSource has fixed devices.
type fakeSource struct {
	devices []Device
	cm      Chardev
	calls   int // number of calls of Devices
}

func (s *fakeSource) Devices() []Device {
	s.calls++
	return s.devices
}

func (s *fakeSource) ConnectionManager() (Chardev, bool) { return s.cm, s.cm.Name != "" }

// A fakeAdmin records calls and returns err.
type fakeAdmin struct {
	calls []string
	err   error
}

func (a *fakeAdmin) AddLink(name, linkType, netdev string) error {
	a.calls = append(a.calls, fmt.Sprintf("add %s %s %s", name, linkType, netdev))
	return a.err
}

func (a *fakeAdmin) DeleteLink(name string) error {
	a.calls = append(a.calls, "delete "+name)
	return a.err
}

// newTestSource returns a source with two devices. rxe0 (index 3) has one or more objects of each kind, and ib1 (index
// 1) has none.
func newTestSource() *fakeSource {
	user, kernel := Owner{PID: 100}, Owner{Kernel: "ib_core"}
	return &fakeSource{
		cm: Chardev{Name: "rdma_cm", Major: 10, Minor: 0x123, ABI: 4},
		devices: []Device{
			{
				Index: 3, Name: "rxe0", NodeType: 1, NameByUser: true, DIM: true, Protocol: "roce",
				NodeGUID: 0x0102030405060708, SysImageGUID: 9, CapFlags: 1 << 40,
				Ports:    []Port{{State: 4, PhysState: 5, NetdevIndex: 2, NetdevName: "eth0"}},
				Uverbs:   Chardev{Name: "uverbs0", Major: 231, Minor: 192, ABI: 1},
				DriverID: 14,
				Resources: Resources{
					PDs: func() []PD {
						return []PD{{ID: 2, Context: 5, UseCount: 3, LocalDMALKey: 6, Owner: user},
							{ID: 1, UseCount: 1, UnsafeGlobalRKey: true, GlobalRKey: 8, Owner: kernel}}
					},
					CQs: func() []CQ {
						return []CQ{{ID: 0, Context: 5, CQE: 64, UseCount: 2, Owner: user},
							{ID: 1, CQE: 128, PollCtx: 1, DIM: true, Owner: kernel}}
					},
					QPs: func() []QP {
						return []QP{
							{Num: 18, Port: 1, PD: 2, Type: 4, State: 3, SQPSN: 4, Owner: user},
							{Num: 17, Port: 1, PD: 2, Type: 2, State: 3, RemoteNum: 99, RQPSN: 1, SQPSN: 2, PathMigState: 1,
								Owner: user},
							{Num: 19, Type: 2, Owner: Owner{}},
						}
					},
					CMIDs: func() []CMID {
						return []CMID{{ID: 7, Port: 1, QPNum: 17, QPType: 2, PS: 0x106, State: 5,
							Src: netip.MustParseAddrPort("10.0.0.1:7471"),
							Dst: netip.MustParseAddrPort("[fe80::2%3]:80"), Owner: user}}
					},
					MRs: func() []MR {
						return []MR{{ID: 4, PD: 2, Length: 1 << 33, LKey: 0x11, RKey: 0x12, Owner: user}}
					},
					Contexts: func() []Context { return []Context{{ID: 5, Owner: user}} },
					SRQs: func() []SRQ {
						return []SRQ{{ID: 0, PD: 2, QPs: []uint32{21, 20, 25, 19}, Owner: user},
							{ID: 1, PD: 2, Type: 1, CQ: 1, Owner: user}}
					},
				},
				Counters: func(port uint32) map[string]uint64 {
					return map[string]uint64{"sent_pkts": 10, "rcvd_pkts": uint64(port)}
				},
			},
			{
				Index: 1, Name: "ib1", NodeType: 1, Protocol: "ib", FWVer: "1.2",
				Ports: []Port{{State: 1, PhysState: 3, CapFlags: 1, SubnetPrefix: 2, LID: 3, SMLID: 4, LMC: 5}, {State: 4}},
			},
		},
	}
}

const (
	deviceRxe = `DEV_INDEX=3 DEV_NAME="rxe0" PORT_INDEX=1 CAP_FLAGS=1099511627776 NODE_GUID=72623859790382856 ` +
		`SYS_IMAGE_GUID=9 DEV_NODE_TYPE=1 DEV_DIM=1 NAME_ASSIGN_TYPE=1 DEV_PROTOCOL="roce"`
	deviceIB = `DEV_INDEX=1 DEV_NAME="ib1" PORT_INDEX=2 CAP_FLAGS=0 FW_VERSION="1.2" NODE_GUID=0 SYS_IMAGE_GUID=0 ` +
		`DEV_NODE_TYPE=1 DEV_DIM=0 NAME_ASSIGN_TYPE=0 DEV_PROTOCOL="ib"`
	portRxe = `DEV_INDEX=3 DEV_NAME="rxe0" PORT_INDEX=1 PORT_STATE=4 PORT_PHYS_STATE=5 NDEV_INDEX=2 NDEV_NAME="eth0"`
	rxe     = `DEV_INDEX=3 DEV_NAME="rxe0" `
	qp17    = `PORT_INDEX=1 RES_LQPN=17 RES_PDN=2 RES_PID=100 RES_RQPN=99 RES_RQ_PSN=1 RES_SQ_PSN=2 ` +
		`RES_PATH_MIG_STATE=1 RES_TYPE=2 RES_STATE=3`
	qp18      = `PORT_INDEX=1 RES_LQPN=18 RES_PDN=2 RES_PID=100 RES_SQ_PSN=4 RES_TYPE=4 RES_STATE=3`
	qp19      = `RES_LQPN=19 RES_PDN=0 RES_RQPN=0 RES_RQ_PSN=0 RES_SQ_PSN=0 RES_PATH_MIG_STATE=0 RES_TYPE=2 RES_STATE=0`
	summaryOf = `RES_SUMMARY={RES_SUMMARY_ENTRY={RES_SUMMARY_ENTRY_NAME="pd" RES_SUMMARY_ENTRY_CURR=%d} ` +
		`RES_SUMMARY_ENTRY={RES_SUMMARY_ENTRY_NAME="cq" RES_SUMMARY_ENTRY_CURR=%d} ` +
		`RES_SUMMARY_ENTRY={RES_SUMMARY_ENTRY_NAME="qp" RES_SUMMARY_ENTRY_CURR=%d} ` +
		`RES_SUMMARY_ENTRY={RES_SUMMARY_ENTRY_NAME="cm_id" RES_SUMMARY_ENTRY_CURR=%d} ` +
		`RES_SUMMARY_ENTRY={RES_SUMMARY_ENTRY_NAME="mr" RES_SUMMARY_ENTRY_CURR=%d} ` +
		`RES_SUMMARY_ENTRY={RES_SUMMARY_ENTRY_NAME="ctx" RES_SUMMARY_ENTRY_CURR=%d} ` +
		`RES_SUMMARY_ENTRY={RES_SUMMARY_ENTRY_NAME="srq" RES_SUMMARY_ENTRY_CURR=%d}}`
)

// newCMIDAttrs returns the attributes of the CM ID of newTestSource.
func newCMIDAttrs() string {
	src := make([]byte, sockaddrSize)
	binary.NativeEndian.PutUint16(src, syscall.AF_INET)
	copy(src[2:], []byte{7471 >> 8, 7471 & 0xff, 10, 0, 0, 1})
	dst := make([]byte, sockaddrSize)
	binary.NativeEndian.PutUint16(dst, syscall.AF_INET6)
	dst[3], dst[8], dst[9], dst[23] = 80, 0xfe, 0x80, 2
	binary.NativeEndian.PutUint32(dst[24:], 3)
	return fmt.Sprintf("PORT_INDEX=1 RES_LQPN=17 RES_TYPE=2 RES_PS=262 RES_STATE=5 RES_SRC_ADDR=%x RES_DST_ADDR=%x "+
		"RES_CM_IDN=7 RES_PID=100", src, dst)
}

const (
	einval  = "error invalid argument"
	enoent  = "error no such file or directory"
	erange  = "error numerical result out of range"
	eperm   = "error operation not permitted"
	enotsup = "error operation not supported"
)

var (
	devRxe  = newAttrU32(attrDevIndex, 3)
	devIB   = newAttrU32(attrDevIndex, 1)
	devNone = newAttrU32(attrDevIndex, 2)
	port1   = newAttrU32(attrPortIndex, 1)
	port2   = newAttrU32(attrPortIndex, 2)
)

// TestAnswersWithoutAdmin checks the answers to single requests of a program without CAP_NET_ADMIN.
func TestAnswersWithoutAdmin(t *testing.T) {
	const ack, dump = flagAck, flagDump
	for _, test := range []struct {
		name    string
		request []byte
		want    []string
	}{
		{"get", newMessage(cmdGet, 0, devRxe), []string{"5/1 " + deviceRxe}},
		{"get with ack", newMessage(cmdGet, ack, devIB), []string{"5/1 " + deviceIB, "--", "ack"}},
		{"get unknown", newMessage(cmdGet, 0, devNone), []string{einval}},
		{"get without index", newMessage(cmdGet, 0), []string{einval}},
		{"get with short index", newMessage(cmdGet, 0, newAttr(attrDevIndex, []byte{3, 0})), []string{einval}},
		{"get with long index", newMessage(cmdGet, 0, newAttr(attrDevIndex, append(devRxe[4:8:8], 1, 2))),
			[]string{"5/1 " + deviceRxe}},
		{"get with two indexes, of which the last counts", newMessage(cmdGet, 0, devNone, devRxe), []string{"5/1 " +
			deviceRxe}},
		{"get with unknown attributes", newMessage(cmdGet, 0, newAttr(attrCount, nil), newAttr(0, nil), devRxe),
			[]string{"5/1 " + deviceRxe}},
		{"get with truncated attribute", newMessage(cmdGet, 0, devRxe, []byte{200, 0, 1, 0}), []string{"5/1 " + deviceRxe}},
		{"get with nested flag", newMessage(cmdGet, 0, newAttrU32(attrDevIndex|attrFlagNested, 3)),
			[]string{"5/1 " + deviceRxe}},
		{"dump", newMessage(cmdGet, dump|ack), []string{"5/1 multi " + deviceIB, "5/1 multi " + deviceRxe, "--", "done 0"}},
		{"dump by one bit", newMessage(cmdGet, 0x200, newAttr(attrDevIndex, nil)),
			[]string{"5/1 multi " + deviceIB, "5/1 multi " + deviceRxe, "--", "done 0"}},

		{"port", newMessage(cmdPortGet, 0, devRxe, port1), []string{"5/1 " + portRxe}},
		{"port of ib", newMessage(cmdPortGet, 0, devIB, port1), []string{`5/1 DEV_INDEX=1 DEV_NAME="ib1" PORT_INDEX=1 ` +
			`CAP_FLAGS=1 SUBNET_PREFIX=2 LID=3 SM_LID=4 LMC=5 PORT_STATE=1 PORT_PHYS_STATE=3`}},
		{"port 0", newMessage(cmdPortGet, 0, devRxe, newAttrU32(attrPortIndex, 0)), []string{einval}},
		{"port 2 of 1", newMessage(cmdPortGet, 0, devRxe, port2), []string{einval}},
		{"port without index", newMessage(cmdPortGet, 0, devRxe), []string{einval}},
		{"port of unknown device", newMessage(cmdPortGet, 0, devNone, port1), []string{einval}},
		{"ports", newMessage(cmdPortGet, dump, devRxe), []string{"5/5 multi " + portRxe, "--", "done 0"}},
		{"ports of unknown device", newMessage(cmdPortGet, dump|ack, devNone), []string{"done -22"}},
		{"ports without device", newMessage(cmdPortGet, dump), []string{"done -22"}},

		{"system", newMessage(cmdSysGet, 0), []string{"5/6 SYS_ATTR_NETNS_MODE=1 SYS_ATTR_PRIVILEGED_QKEY_MODE=0 " +
			"SYS_ATTR_MONITOR_MODE=0 SYS_ATTR_COPY_ON_FORK=1"}},
		{"system with short attribute", newMessage(cmdSysGet, 0, newAttr(attrDevIndex, nil)), []string{erange}},
		{"system with long string", newMessage(cmdSysGet, 0, newTextAttr(attrDevName, strings.Repeat("x", 65))),
			[]string{einval}},
		{"system with bytes after a string", newMessage(cmdSysGet, 0, newAttr(attrDevName, make([]byte, 70))),
			[]string{erange}},
		{"system with short address", newMessage(cmdSysGet, 0, newAttr(attrResSrcAddr, make([]byte, 16))), []string{erange}},
		{"system with short table", newMessage(cmdSysGet, 0, newAttr(attrResQP, make([]byte, 3))), []string{erange}},
		{"system dump", newMessage(cmdSysGet, dump), []string{einval}},

		{"uverbs", newMessage(cmdGetChardev, ack, devRxe, newTextAttr(attrChardevType, "uverbs")),
			[]string{fmt.Sprintf(`5/15 UVERBS_DRIVER_ID=14 CHARDEV=%d CHARDEV_ABI=1 CHARDEV_NAME="uverbs0"`, 231<<8|192),
				"--", "ack"}},
		{"rdma_cm", newMessage(cmdGetChardev, 0, newTextAttr(attrChardevType, "rdma_cm")),
			[]string{fmt.Sprintf(`5/15 CHARDEV=%d CHARDEV_ABI=4 CHARDEV_NAME="rdma_cm"`, 1<<20|10<<8|0x23)}},
		{"rdma_cm of a device", newMessage(cmdGetChardev, 0, devRxe, newTextAttr(attrChardevType, "rdma_cm")),
			[]string{enotsup}},
		{"uverbs of no device", newMessage(cmdGetChardev, 0, newTextAttr(attrChardevType, "uverbs")), []string{enotsup}},
		{"uverbs of a device without uverbs", newMessage(cmdGetChardev, 0, devIB, newTextAttr(attrChardevType, "uverbs")),
			[]string{enotsup}},
		{"uverbs of a port", newMessage(cmdGetChardev, 0, devRxe, port1, newTextAttr(attrChardevType, "uverbs")),
			[]string{einval}},
		{"umad of a port", newMessage(cmdGetChardev, 0, devRxe, port1, newTextAttr(attrChardevType, "umad")),
			[]string{enotsup}},
		{"umad of an unknown port", newMessage(cmdGetChardev, 0, devRxe, port2, newTextAttr(attrChardevType, "umad")),
			[]string{einval}},
		{"rdma_cm of a port", newMessage(cmdGetChardev, 0, port1, newTextAttr(attrChardevType, "rdma_cm")), []string{einval}},
		{"chardev of unknown device", newMessage(cmdGetChardev, 0, devNone, newTextAttr(attrChardevType, "uverbs")),
			[]string{einval}},
		{"chardev without type", newMessage(cmdGetChardev, 0, devRxe), []string{einval}},
		{"chardev with a type without NUL", newMessage(cmdGetChardev, 0, devRxe, newAttr(attrChardevType, []byte("uverbs"))),
			[]string{einval}},
		{"chardev dump", newMessage(cmdGetChardev, dump), []string{einval}},

		{"summary", newMessage(cmdResGet, 0, devRxe), []string{"5/9 " + rxe + fmt.Sprintf(summaryOf, 2, 2, 3, 1, 1, 1, 2)}},
		{"summaries", newMessage(cmdResGet, dump), []string{
			`5/9 multi DEV_INDEX=1 DEV_NAME="ib1" ` + fmt.Sprintf(summaryOf, 0, 0, 0, 0, 0, 0, 0),
			"5/9 multi " + rxe + fmt.Sprintf(summaryOf, 2, 2, 3, 1, 1, 1, 2), "--", "done 0"}},
		{"summary of unknown device", newMessage(cmdResGet, 0, devNone), []string{einval}},

		{"qps", newMessage(cmdResQPGet, dump, devRxe), []string{"5/10 multi " + rxe + "RES_QP={RES_QP_ENTRY={" + qp17 +
			"} RES_QP_ENTRY={" + qp18 + "} RES_QP_ENTRY={" + qp19 + "}}", "--", "done 0"}},
		{"qps of a port", newMessage(cmdResQPGet, dump, devRxe, port1), []string{"5/10 multi " + rxe +
			"RES_QP={RES_QP_ENTRY={" + qp17 + "} RES_QP_ENTRY={" + qp18 + "}}", "--", "done 0"}},
		{"qps of an unknown port", newMessage(cmdResQPGet, dump, devRxe, port2), []string{"done -22"}},
		{"qps of an empty device", newMessage(cmdResQPGet, dump, devIB), []string{"done 0"}},
		{"qps of an unknown device", newMessage(cmdResQPGet, dump, devNone), []string{"done -22"}},
		{"qps of no device", newMessage(cmdResQPGet, dump), []string{"done -22"}},
		{"qp", newMessage(cmdResQPGet, 0, devRxe, port1, newAttrU32(attrResLQPN, 18)), []string{"5/10 " + rxe + qp18}},
		{"qp without port", newMessage(cmdResQPGet, 0, devRxe, newAttrU32(attrResLQPN, 18)), []string{einval}},
		{"qp without number", newMessage(cmdResQPGet, 0, devRxe, port1), []string{einval}},
		{"qp of no device", newMessage(cmdResQPGet, 0, port1, newAttrU32(attrResLQPN, 18)), []string{einval}},
		{"unknown qp", newMessage(cmdResQPGet, 0, devRxe, port1, newAttrU32(attrResLQPN, 1)), []string{enoent}},
		{"qp of another port", newMessage(cmdResQPGet, 0, devRxe, port1, newAttrU32(attrResLQPN, 19)),
			[]string{"error resource temporarily unavailable"}},

		{"cm ids", newMessage(cmdResCMIDGet, dump, devRxe), []string{"5/11 multi " + rxe + "RES_CM_ID={RES_CM_ID_ENTRY={" +
			newCMIDAttrs() + "}}", "--", "done 0"}},
		{"cm id", newMessage(cmdResCMIDGet, 0, devRxe, port1, newAttrU32(attrResCMIDN, 7)), []string{"5/11 " + rxe +
			newCMIDAttrs()}},
		{"cqs", newMessage(cmdResCQGet, dump, devRxe), []string{"5/12 multi " + rxe + "RES_CQ={" +
			"RES_CQ_ENTRY={RES_CQE=64 RES_USECNT=2 DEV_DIM=0 RES_CQN=0 RES_CTXN=5 RES_PID=100} " +
			`RES_CQ_ENTRY={RES_CQE=128 RES_USECNT=0 RES_POLL_CTX=1 DEV_DIM=1 RES_CQN=1 RES_KERN_NAME="ib_core"}}`,
			"--", "done 0"}},
		{"cq with port", newMessage(cmdResCQGet, 0, devRxe, port1, newAttrU32(attrResCQN, 0)), []string{einval}},
		{"cq", newMessage(cmdResCQGet, 0, devRxe, newAttrU32(attrResCQN, 0)),
			[]string{"5/12 " + rxe + "RES_CQE=64 RES_USECNT=2 DEV_DIM=0 RES_CQN=0 RES_CTXN=5 RES_PID=100"}},
		{"mrs", newMessage(cmdResMRGet, dump, devRxe), []string{"5/13 multi " + rxe +
			"RES_MR={RES_MR_ENTRY={RES_MRLEN=8589934592 RES_MRN=4 RES_PDN=2 RES_PID=100}}", "--", "done 0"}},
		{"pds", newMessage(cmdResPDGet, dump, devRxe), []string{"5/14 multi " + rxe + "RES_PD={" +
			`RES_PD_ENTRY={RES_USECNT=1 RES_PDN=1 RES_KERN_NAME="ib_core"} ` +
			"RES_PD_ENTRY={RES_USECNT=3 RES_PDN=2 RES_CTXN=5 RES_PID=100}}", "--", "done 0"}},
		{"contexts", newMessage(cmdResCtxGet, dump, devRxe), []string{"5/22 multi " + rxe +
			"RES_CTX={RES_CTX_ENTRY={RES_CTXN=5 RES_PID=100}}", "--", "done 0"}},
		{"srqs", newMessage(cmdResSRQGet, dump, devRxe), []string{"5/23 multi " + rxe + "RES_SRQ={" +
			"RES_SRQ_ENTRY={RES_SRQN=0 RES_TYPE=0 RES_PDN=2 RES_QP=[RES_QP_ENTRY=[MIN_RANGE=19 MAX_RANGE=21] " +
			"RES_QP_ENTRY=[RES_LQPN=25]] RES_PID=100} " +
			"RES_SRQ_ENTRY={RES_SRQN=1 RES_TYPE=1 RES_PDN=2 RES_CQN=1 RES_QP=[] RES_PID=100}}", "--", "done 0"}},

		{"counters", newMessage(cmdStatGet, ack, devRxe, port1), []string{"5/17 " + rxe + "PORT_INDEX=1 STAT_HWCOUNTERS=[" +
			`STAT_HWCOUNTER_ENTRY=[STAT_HWCOUNTER_ENTRY_NAME="rcvd_pkts" STAT_HWCOUNTER_ENTRY_VALUE=1] ` +
			`STAT_HWCOUNTER_ENTRY=[STAT_HWCOUNTER_ENTRY_NAME="sent_pkts" STAT_HWCOUNTER_ENTRY_VALUE=10]]`, "--", "ack"}},
		{"counters of a device without counters", newMessage(cmdStatGet, 0, devIB, port1), []string{einval}},
		{"counters without port", newMessage(cmdStatGet, 0, devRxe), []string{einval}},
		{"counters of an unknown port", newMessage(cmdStatGet, 0, devRxe, port2), []string{einval}},
		{"counter mode", newMessage(cmdStatGet, 0, devRxe, port1, newAttrU32(attrStatRes, attrResQP),
			newAttrU32(attrStatMode, 0)),
			[]string{"5/17 " + rxe + "PORT_INDEX=1 STAT_MODE=0"}},
		{"counter by id", newMessage(cmdStatGet, 0, devRxe, port1, newAttrU32(attrStatRes, attrResQP),
			newAttrU32(attrStatCounterID, 1)), []string{enoent}},
		{"counters of qps", newMessage(cmdStatGet, dump, devRxe, newAttrU32(attrStatRes, attrResQP)), []string{"done 0"}},
		{"counters of mrs", newMessage(cmdStatGet, dump, devRxe, newAttrU32(attrStatRes, attrResMR)),
			[]string{"5/17 multi " + rxe + "RES_MR={RES_MR_ENTRY={RES_MRN=4}}", "--", "done 0"}},
		{"counters of pds", newMessage(cmdStatGet, dump, devRxe, newAttrU32(attrStatRes, attrResPD)), []string{"done -22"}},
		{"counter dump without kind", newMessage(cmdStatGet, dump, devRxe), []string{"done -22"}},
		{"counter status", newMessage(cmdStatStatus, 0, devRxe, port1), []string{"5/24 " + rxe +
			`PORT_INDEX=1 STAT_HWCOUNTERS=[STAT_HWCOUNTER_ENTRY=[STAT_HWCOUNTER_ENTRY_NAME="rcvd_pkts" ` +
			`STAT_HWCOUNTER_INDEX=0] STAT_HWCOUNTER_ENTRY=[STAT_HWCOUNTER_ENTRY_NAME="sent_pkts" STAT_HWCOUNTER_INDEX=1]]`}},

		{"unspecified command", newMessage(0, 0), []string{einval}},
		{"command 8", newMessage(8, 0), []string{einval}},
		{"monitor", newMessage(cmdMonitor, 0), []string{einval}},
		{"unknown command", newMessage(cmdCount, 0), []string{einval}},
		{"unknown command, dump", newMessage(commandMask, dump), []string{einval}},
		{"privileged command", newMessage(cmdSet, ack, devRxe, newTextAttr(attrDevName, "x")), []string{eperm}},
		{"privileged dump", newMessage(cmdResQPGetRaw, dump, devRxe), []string{eperm}},

		{"nothing", nil, nil},
		{"short header", newMessage(cmdGet, dump)[:15], nil},
		{"length below header", newMessage(cmdGet, dump, devRxe)[8:], nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := slices.Clone(test.request)
			got := describeAnswers(t, defaultSocket.Answer(newTestSource(), nil, test.request))
			if !slices.Equal(got, test.want) {
				t.Errorf("answer: got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
			if !bytes.Equal(before, test.request) {
				t.Error("request after Answer: got a modified one, want no change")
			}
		})
	}
}

// TestAnswersWithAdmin checks the commands of a program with CAP_NET_ADMIN.
func TestAnswersWithAdmin(t *testing.T) {
	name := func(s string) []byte { return newTextAttr(attrDevName, s) }
	rxeType, eth1 := newTextAttr(attrLinkType, "rxe"), newTextAttr(attrNdevName, "eth1")
	res := newAttrU32(attrStatRes, attrResQP)
	for _, test := range []struct {
		name    string
		request []byte
		err     error
		want    []string
		calls   []string
	}{
		{name: "add", request: newMessage(cmdNewLink, flagAck, name("rxe1"), rxeType, eth1), want: []string{"ack"},
			calls: []string{"add rxe1 rxe eth1"}},
		{name: "add without ack", request: newMessage(cmdNewLink, 0, name("rxe1"), rxeType, eth1),
			calls: []string{"add rxe1 rxe eth1"}},
		{name: "add fails", request: newMessage(cmdNewLink, 0, name("rxe1"), rxeType, eth1),
			err: fmt.Errorf("add rxe1: %w", syscall.EEXIST), want: []string{"error file exists"},
			calls: []string{"add rxe1 rxe eth1"}},
		{name: "add fails without errno", request: newMessage(cmdNewLink, 0, name("rxe1"), rxeType, eth1),
			err: errors.New("no"), want: []string{einval}, calls: []string{"add rxe1 rxe eth1"}},
		{name: "add fails with errno 0", request: newMessage(cmdNewLink, 0, name("rxe1"), rxeType, eth1),
			err: syscall.Errno(0), want: []string{einval}, calls: []string{"add rxe1 rxe eth1"}},
		{name: "add with the longest names", request: newMessage(cmdNewLink, 0, name(strings.Repeat("n", 64)),
			newTextAttr(attrLinkType, strings.Repeat("t", 16)), eth1),
			calls: []string{"add " + strings.Repeat("n", 63) + " " + strings.Repeat("t", 15) + " eth1"}},
		{name: "add pattern", request: newMessage(cmdNewLink, 0, name("rxe%d"), rxeType, eth1), want: []string{einval}},
		{name: "add empty name", request: newMessage(cmdNewLink, 0, name(""), rxeType, eth1), want: []string{einval}},
		{name: "add without type", request: newMessage(cmdNewLink, 0, name("rxe1"), eth1), want: []string{einval}},
		{name: "add without interface", request: newMessage(cmdNewLink, 0, name("rxe1"), rxeType), want: []string{einval}},
		{name: "add with unknown attribute", request: newMessage(cmdNewLink, 0, name("rxe1"), rxeType, eth1,
			newAttr(attrCount, nil)), want: []string{einval}},
		{name: "add with trailing bytes", request: newMessage(cmdNewLink, 0, name("rxe1"), rxeType, eth1, []byte{1}),
			want: []string{einval}},
		{name: "delete", request: newMessage(cmdDelLink, flagAck, devRxe), want: []string{"ack"},
			calls: []string{"delete rxe0"}},
		{name: "delete fails", request: newMessage(cmdDelLink, 0, devRxe), err: syscall.EBUSY,
			want: []string{"error device or resource busy"}, calls: []string{"delete rxe0"}},
		{name: "delete unknown", request: newMessage(cmdDelLink, 0, devNone), want: []string{einval}},
		{name: "delete with long index", request: newMessage(cmdDelLink, 0, newAttr(attrDevIndex, make([]byte, 8))),
			want: []string{einval}},

		{name: "rename", request: newMessage(cmdSet, flagAck, devRxe, name("x")), want: []string{enotsup}},
		{name: "rename to itself", request: newMessage(cmdSet, flagAck, devRxe, name("rxe0")), want: []string{"ack"}},
		{name: "rename to another", request: newMessage(cmdSet, 0, devRxe, name("ib1")), want: []string{"error file exists"}},
		{name: "rename to nothing", request: newMessage(cmdSet, 0, devRxe, name("")), want: []string{einval}},
		{name: "rename unknown", request: newMessage(cmdSet, 0, devNone, name("x")), want: []string{einval}},
		{name: "set namespace", request: newMessage(cmdSet, 0, devRxe, newAttrU32(attrNetNSFD, 3)), want: []string{enotsup}},
		{name: "set moderation", request: newMessage(cmdSet, 0, devRxe, newAttrU8(attrDevDIM, 0)), want: []string{enotsup}},
		{name: "set moderation to the current value", request: newMessage(cmdSet, flagAck, devRxe, newAttrU8(attrDevDIM, 1)),
			want: []string{"ack"}},
		{name: "set moderation to 2", request: newMessage(cmdSet, 0, devRxe, newAttrU8(attrDevDIM, 2)),
			want: []string{einval}},
		{name: "set nothing", request: newMessage(cmdSet, flagAck, devRxe), want: []string{"ack"}},
		{name: "exclusive namespaces", request: newMessage(cmdSysSet, 0, newAttrU8(attrSysNetnsMode, 0)),
			want: []string{enotsup}},
		{name: "shared namespaces", request: newMessage(cmdSysSet, flagAck, newAttrU8(attrSysNetnsMode, 1)),
			want: []string{"ack"}},
		{name: "privileged Q_Key", request: newMessage(cmdSysSet, 0, newAttrU8(attrSysPrivilegedQkeyMode, 1)),
			want: []string{enotsup}},
		{name: "set no system attribute", request: newMessage(cmdSysSet, 0), want: []string{einval}},

		{name: "bind counter", request: newMessage(cmdStatSet, 0, devRxe, port1, res, newAttrU32(attrStatMode, 2),
			newAttrU32(attrResLQPN, 17)), want: []string{enotsup}},
		{name: "bind counter without QP", request: newMessage(cmdStatSet, 0, devRxe, port1, res, newAttrU32(attrStatMode, 2)),
			want: []string{einval}},
		{name: "automatic counters", request: newMessage(cmdStatSet, 0, devRxe, port1, res, newAttrU32(attrStatMode, 1)),
			want: []string{enotsup}},
		{name: "no optional counters", request: newMessage(cmdStatSet, 0, devRxe, port1,
			newAttr(attrStatHwcounters|attrFlagNested, nil)), want: []string{"5/16 " + rxe + "PORT_INDEX=1"}},
		{name: "optional counter", request: newMessage(cmdStatSet, 0, devRxe, port1,
			newAttr(attrStatHwcounters|attrFlagNested, newAttrU32(attrStatHwcounterIndex, 0))), want: []string{einval}},
		{name: "set no counter", request: newMessage(cmdStatSet, 0, devRxe, port1), want: []string{einval}},
		{name: "unbind counter", request: newMessage(cmdStatDel, 0, devRxe, port1, res, newAttrU32(attrStatCounterID, 1),
			newAttrU32(attrResLQPN, 17)), want: []string{einval}},
		{name: "unbind counter of unknown QP", request: newMessage(cmdStatDel, 0, devRxe, port1, res,
			newAttrU32(attrStatCounterID, 1), newAttrU32(attrResLQPN, 1)), want: []string{enoent}},
		{name: "add sub-device", request: newMessage(cmdNewDev, 0, devRxe, name("x"), newAttrU8(attrDevType, 1)),
			want: []string{enotsup}},
		{name: "add sub-device without type", request: newMessage(cmdNewDev, 0, devRxe, name("x")), want: []string{einval}},
		{name: "delete sub-device", request: newMessage(cmdDelDev, 0, devRxe), want: []string{enotsup}},

		{name: "keys of MRs", request: newMessage(cmdResMRGet, 0, devRxe, newAttrU32(attrResMRN, 4)), want: []string{"5/13 " +
			rxe + "RES_RKEY=18 RES_LKEY=17 RES_MRLEN=8589934592 RES_MRN=4 RES_PDN=2 RES_PID=100"}},
		{name: "keys of PDs", request: newMessage(cmdResPDGet, 0, devRxe, newAttrU32(attrResPDN, 1)), want: []string{"5/14 " +
			rxe + `RES_LOCAL_DMA_LKEY=0 RES_UNSAFE_GLOBAL_RKEY=8 RES_USECNT=1 RES_PDN=1 RES_KERN_NAME="ib_core"`}},
		{name: "raw QP", request: newMessage(cmdResQPGetRaw, 0, devRxe, port1, newAttrU32(attrResLQPN, 17)),
			want: []string{einval}},
		{name: "raw QPs", request: newMessage(cmdResQPGetRaw, flagDump, devRxe), want: []string{"done -22"}},
		{name: "raw QPs of an empty device", request: newMessage(cmdResQPGetRaw, flagDump, devIB), want: []string{"done 0"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			admin := &fakeAdmin{err: test.err}
			got := describeAnswers(t, defaultSocket.Answer(newTestSource(), admin, test.request))
			if !slices.Equal(got, test.want) {
				t.Errorf("answer: got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
			if !slices.Equal(admin.calls, test.calls) {
				t.Errorf("calls: got %q, want %q", admin.calls, test.calls)
			}
		})
	}
}

// withHeader returns the message with another type and other flags.
func withHeader(m []byte, typ, flags uint16) []byte {
	binary.NativeEndian.PutUint16(m[4:], typ)
	binary.NativeEndian.PutUint16(m[6:], flags)
	return m
}

// TestMessagesWithoutCommandAreAcked checks messages that are not passed to a command.
func TestMessagesWithoutCommandAreAcked(t *testing.T) {
	const get = clientNldev<<clientShift | cmdGet
	for _, test := range []struct {
		name    string
		request []byte
		want    []string
	}{
		{"no request", withHeader(newMessage(cmdGet, 0, devRxe), get, 0), nil},
		{"no request, ack", withHeader(newMessage(cmdGet, 0, devRxe), get, flagAck), []string{"ack"}},
		{"control message", withHeader(newMessage(0, 0), typeDone, flagRequest), nil},
		{"control message, ack", withHeader(newMessage(0, 0), typeDone, flagRequest|flagAck), []string{"ack"}},
		{"family 0", withHeader(newMessage(0, 0), typeMin, flagRequest), []string{einval}},
		{"family 2", withHeader(newMessage(0, 0), 2<<clientShift, flagRequest|flagDump), []string{einval}},
		{"family 63", withHeader(newMessage(0, 0), 0xffff, flagRequest), []string{einval}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := describeAnswers(t, defaultSocket.Answer(newTestSource(), nil, test.request))
			if !slices.Equal(got, test.want) {
				t.Errorf("answer: got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

// TestSeveralMessagesAreAnswered checks a datagram with several messages, one of which has an unaligned length.
func TestSeveralMessagesAreAnswered(t *testing.T) {
	odd := newMessage(cmdResQPGet, 0, devNone, []byte{0})
	odd = append(odd, 0, 0, 0)
	request := slices.Concat(odd, newMessage(cmdGet, flagDump), newMessage(cmdGet, flagDump), newMessage(cmdGet, flagAck,
		devRxe),
		newMessage(cmdGet, 0, devIB)[:20])
	src := newTestSource()
	got := describeAnswers(t, defaultSocket.Answer(src, nil, request))
	want := []string{einval, "--", "5/1 multi " + deviceIB, "5/1 multi " + deviceRxe, "--", "done 0", "--",
		"error device or resource busy", "--", "5/1 " + deviceRxe, "--", "ack"}
	if !slices.Equal(got, want) {
		t.Errorf("answer: got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if src.calls != 1 {
		t.Errorf("calls of Devices: got %d, want 1", src.calls)
	}
}

// TestLaterMessageSeesChange checks that a message sees a change that an earlier message in the same datagram has made.
func TestLaterMessageSeesChange(t *testing.T) {
	src := newTestSource()
	admin := deleteLinkFunc(func() { src.devices = src.devices[1:] })
	request := slices.Concat(newMessage(cmdDelLink, 0, devRxe), newMessage(cmdGet, 0, devRxe), newMessage(cmdGet, 0,
		devIB))
	got := describeAnswers(t, defaultSocket.Answer(src, admin, request))
	if want := []string{einval, "--", "5/1 " + deviceIB}; !slices.Equal(got, want) {
		t.Errorf("answer: got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// deleteLinkFunc implements Admin by a function for DeleteLink.
type deleteLinkFunc func()

func (f deleteLinkFunc) AddLink(string, string, string) error { return nil }

func (f deleteLinkFunc) DeleteLink(string) error {
	f()
	return nil
}

// TestCapAckErrorOmitsRequest checks that an error does not repeat the request of a socket with NETLINK_CAP_ACK.
func TestCapAckErrorOmitsRequest(t *testing.T) {
	s := Socket{PortID: testPort, CapAck: true}
	got := describeAnswers(t, s.Answer(newTestSource(), nil, newMessage(cmdGet, 0, devNone)))
	if want := []string{"capped " + einval}; !slices.Equal(got, want) {
		t.Errorf("answer: got %q, want %q", got, want)
	}
}

// newManyMRSource returns a source with n memory regions and n devices.
func newManyMRSource(n int) *fakeSource {
	src := &fakeSource{devices: []Device{{Index: 0, Name: "rxe0", Resources: Resources{MRs: func() []MR {
		mrs := make([]MR, n)
		for i := range mrs {
			mrs[i] = MR{ID: uint32(n - 1 - i), Owner: Owner{PID: 1}}
		}
		return mrs
	}}}}}
	for i := 1; i < n; i++ {
		src.devices = append(src.devices, Device{Index: uint32(i), Name: fmt.Sprintf("rxe%d", i)})
	}
	return src
}

// TestDumpFillsDatagrams checks that a dump fills its datagrams, exceeds none, and reports every entry once and in
// order.
func TestDumpFillsDatagrams(t *testing.T) {
	const n = 1000
	src := newManyMRSource(n)
	for _, test := range []struct {
		set, size int
	}{{0, defaultDatagramSize}, {1, defaultDatagramSize}, {16 << 10, 16 << 10}, {1 << 20, maxDatagramSize}} {
		for _, cmd := range []uint16{cmdGet, cmdResMRGet} {
			s := Socket{PortID: testPort, Datagram: test.set}
			answers := s.Answer(src, nil, newMessage(cmd, flagDump, newAttrU32(attrDevIndex, 0)))
			var next int
			for i, b := range answers[:len(answers)-1] {
				if len(b) > test.size || i < len(answers)-2 && len(b) < test.size-200 {
					t.Errorf("command %d: size of datagram %d: got %d bytes, want at most %d and nearly as many", cmd, i, len(b),
						test.size)
				}
				list, err := parseDatagram(b)
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range list {
					for _, id := range messageIDs(t, cmd, m.payload) {
						if id != next {
							t.Fatalf("command %d: got entry %d, want %d", cmd, id, next)
						}
						next++
					}
				}
			}
			if next != n {
				t.Errorf("command %d: got %d entries, want %d", cmd, next, n)
			}
			if got := describeAnswers(t, answers[len(answers)-1:]); got[0] != "done 0" {
				t.Errorf("command %d: last datagram: got %q, want %q", cmd, got, "done 0")
			}
		}
	}
}

// messageIDs returns the identifiers of the MRs in the table of a message, or the index of the device that the message
// describes.
func messageIDs(t *testing.T, cmd uint16, payload []byte) []int {
	t.Helper()
	var out []int
	var walk func([]byte)
	walk = func(b []byte) {
		list, err := parseAttrs(b)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range list {
			switch {
			case a.typ == attrResMR || a.typ == attrResMREntry:
				walk(a.data)
			case a.typ == attrResMRN, a.typ == attrDevIndex && cmd == cmdGet:
				out = append(out, int(binary.NativeEndian.Uint32(a.data)))
			}
		}
	}
	walk(payload)
	return out
}

// TestEntryBeyondDatagramFails checks entries that exceed a datagram.
func TestEntryBeyondDatagramFails(t *testing.T) {
	long := strings.Repeat("x", maxDatagramSize)
	src := &fakeSource{devices: []Device{
		{Index: 1, Name: "a"},
		{Index: 2, Name: long, Ports: make([]Port, 1), Resources: Resources{
			PDs: func() []PD { return make([]PD, 1) },
			QPs: func() []QP { return make([]QP, 1) }, // not bound to a port
		}},
		{Index: 3, Name: "c", Resources: Resources{
			PDs:  func() []PD { return []PD{{ID: 1}, {ID: 2, Owner: Owner{Kernel: long}}, {ID: 3}} },
			SRQs: func() []SRQ { return []SRQ{{QPs: evenNumbers(1000)}} },
		}, Ports: make([]Port, 1), Counters: func(uint32) map[string]uint64 { return map[string]uint64{long: 1} }},
	}}
	index := func(i uint32) []byte { return newAttrU32(attrDevIndex, i) }
	const tooLong = "error message too long"
	for _, test := range []struct {
		name    string
		request []byte
		want    []string
	}{
		{"device", newMessage(cmdGet, 0, index(2)), []string{tooLong}},
		{"devices", newMessage(cmdGet, flagDump), []string{`5/1 multi DEV_INDEX=1 DEV_NAME="a" PORT_INDEX=0 CAP_FLAGS=0 ` +
			`NODE_GUID=0 SYS_IMAGE_GUID=0 DEV_NODE_TYPE=0 DEV_DIM=0 NAME_ASSIGN_TYPE=0`, "--", "done -90"}},
		{"handle of a table", newMessage(cmdResPDGet, flagDump, index(2)), []string{"done -90"}},
		{"handle of a table without entries", newMessage(cmdResQPGet, flagDump, index(2), port1), []string{"done -90"}},
		{"entry of a table", newMessage(cmdResPDGet, flagDump, index(3)), []string{
			`5/14 multi DEV_INDEX=3 DEV_NAME="c" RES_PD={RES_PD_ENTRY={RES_USECNT=0 RES_PDN=1 RES_CTXN=0}}`,
			"--", "done -90"}},
		{"table in an entry", newMessage(cmdResSRQGet, flagDump, index(3)), []string{"done -90"}},
		{"counters", newMessage(cmdStatGet, 0, index(3), port1), []string{tooLong}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := describeAnswers(t, defaultSocket.Answer(src, nil, test.request)); !slices.Equal(got, test.want) {
				t.Errorf("answer: got:\n%.300s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

// evenNumbers returns n numbers without two consecutive numbers.
func evenNumbers(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(2 * i)
	}
	return out
}

// TestAnswersAreLimited checks that the answers to a request are limited, regardless of the number of messages.
func TestAnswersAreLimited(t *testing.T) {
	src := newManyMRSource(100)
	one := newMessage(cmdGet, 0, newAttrU32(attrDevIndex, 0))
	request := slices.Concat(bytes.Repeat(one, 10000), bytes.Repeat(newMessage(cmdGet, flagDump), 10000))
	var size int
	for _, b := range defaultSocket.Answer(src, nil, request) {
		size += len(b)
	}
	if most := receiveQueueSize + 100*200; size > most || size < receiveQueueSize/2 {
		t.Errorf("size of the answers: got %d bytes, want between %d and %d", size, receiveQueueSize/2, most)
	}
}

// TestRefuseReturnsOneError checks that a rejected request is answered by one error and not executed.
func TestRefuseReturnsOneError(t *testing.T) {
	one := newMessage(cmdGet, flagDump)
	for _, c := range []struct {
		request []byte
		want    int
	}{{nil, 0}, {one[:8], 0}, {one[:len(one)-1], 0}, {one, 1}, {slices.Concat(one, one), 1}} {
		answers := Socket{PortID: testPort}.Refuse(c.request, syscall.ENOBUFS)
		if len(answers) != c.want {
			t.Fatalf("Refuse of %d bytes: got %d answers, want %d", len(c.request), len(answers), c.want)
		}
		for _, b := range answers {
			list, err := parseDatagram(b)
			if err != nil || len(list) != 1 || list[0].typ != typeError ||
				int32(binary.NativeEndian.Uint32(list[0].payload)) != -int32(syscall.ENOBUFS) {
				t.Errorf("Refuse: got %+v and error %v, want one NLMSG_ERROR", list, err)
			}
		}
	}
}

// FuzzAnswer checks that no request makes Answer panic, and that the answers are well-formed.
func FuzzAnswer(f *testing.F) {
	for cmd := range uint16(cmdCount + 1) {
		for _, flags := range []uint16{flagAck, flagDump} {
			f.Add(newMessage(cmd, flags, devRxe, port1, newAttrU32(attrResLQPN, 17), newAttrU32(attrStatRes, attrResQP)), 0,
				true)
			f.Add(newMessage(cmd, flags, devRxe, newAttrU32(attrResMRN, 4), newAttrU32(attrResPDN, 1)), 1, false)
			f.Add(newMessage(cmd, flags, newTextAttr(attrDevName, "a"), newTextAttr(attrLinkType, "rxe"),
				newTextAttr(attrNdevName, "lo"), newTextAttr(attrChardevType, "rdma_cm")), 1<<20, true)
		}
	}
	src := newTestSource()
	f.Fuzz(func(t *testing.T, request []byte, size int, privileged bool) {
		var admin Admin
		if privileged {
			admin = &fakeAdmin{}
		}
		before := slices.Clone(request)
		answers := Socket{PortID: testPort, Datagram: size}.Answer(src, admin, request)
		if !bytes.Equal(before, request) {
			t.Error("request after Answer: got a modified one, want no change")
		}
		for i, b := range answers {
			if len(b) > maxDatagramSize && len(b) > len(request)+64 {
				t.Errorf("size of datagram %d: got %d bytes, want fewer", i, len(b))
			}
			list, err := parseDatagram(b)
			if err != nil {
				t.Fatalf("parse datagram %d: got %v, want success", i, err)
			}
			for _, m := range list {
				switch m.typ {
				case typeDone:
					if len(m.payload) != 4 {
						t.Fatalf("datagram %d: payload of NLMSG_DONE: got %d bytes, want 4", i, len(m.payload))
					}
				case typeError:
					if len(m.payload) < 4+headerSize {
						t.Fatalf("datagram %d: payload of NLMSG_ERROR: got %d bytes, want at least an errno and a header", i,
							len(m.payload))
					}
				default:
					if _, err := parseAttrs(m.payload); err != nil {
						t.Fatalf("parse the attributes of datagram %d: got %v, want success", i, err)
					}
				}
			}
		}
	})
}
