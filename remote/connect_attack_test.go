package remote_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/internal/ctl/devfile"
	"verbena/internal/testutil"
	"verbena/rdmacm/msg"
	"verbena/service/servicetest"
	"verbena/uapi"
	"verbena/uapi/ucm"
	"verbena/verbs"
	verbsservice "verbena/verbs/service"
)

// cmAttacker is an attacker that issues commands to the connection manager.
type cmAttacker struct {
	*attacker
	mem []byte // memory at window
}

func newCMAttacker(t testing.TB, a *attacker) *cmAttacker {
	t.Helper()
	w := a.sendRequest(devfile.Request{Op: devfile.OpAlloc, Addr: commandBufferAddr, N: windowSize})
	must(t, w.Err())
	const prot = unix.PROT_READ | unix.PROT_WRITE
	mem, err := unix.Mmap(a.fds[devfile.BufferFile], int64(w.N), windowSize, prot, unix.MAP_SHARED)
	must(t, err)
	t.Cleanup(func() { unix.Munmap(mem) })
	return &cmAttacker{a, mem}
}

// responseOffset is the offset of responses in the window.
const responseOffset = 4096

func issueCommand[C any](c *cmAttacker, cmd ucm.Command, v C, out int) error {
	h := ucm.Hdr{Cmd: cmd, In: uint16(uapi.SizeOf[C]()), Out: uint16(out)}
	b := uapi.AppendTo(uapi.AppendTo(nil, &h), &v)
	copy(c.mem, b)
	a := c.sendRequest(devfile.Request{Op: devfile.OpWrite, Addr: commandBufferAddr, N: uint64(len(b))})
	return a.Err()
}

// waitForEvent waits for an event.
func (c *cmAttacker) waitForEvent() {
	c.t.Helper()
	var err error
	testutil.Eventually(c.t, "an event of the connection manager", func() bool {
		err = issueCommand(c, ucm.CmdGetEvent, ucm.GetEvent{Response: commandBufferAddr + responseOffset},
			uapi.SizeOf[ucm.EventResp]())
		return !errors.Is(err, syscall.EAGAIN)
	})
	must(c.t, err)
}

// TestConnectOthersQueuePairIsRefused tests that a user cannot connect the queue pair of another user, while its owner
// and a manager can.
func TestConnectOthersQueuePairIsRefused(t *testing.T) {
	testutil.SkipUnlessRoot(t, "to act as several users")
	const owner, other = 65532, 65533
	_, loc := servicetest.Device(t, "127.91.13.3")
	testutil.MakeSearchable(t, filepath.Dir(loc.Socket))
	must(t, os.Chmod(loc.Socket, 0o666))
	var d *verbs.Device
	testutil.RunAsUser(t, owner, func() {
		s, err := verbsservice.At(loc.Socket)
		if err == nil {
			d, err = s.Open("rxe0")
		}
		if err != nil {
			t.Error(err)
		}
	})
	if d == nil {
		t.FailNow()
	}
	defer d.Close()
	foreign := connectPair(t, d, nil).from.Num()
	for _, tt := range []struct {
		name string
		uid  int
		want error
	}{{"another user", other, syscall.EINVAL}, {"the owner", owner, nil}, {"a manager", 0, nil}} {
		var c *cmAttacker
		testutil.RunAsUser(t, tt.uid, func() { c = newCMAttacker(t, newAttacker(t, loc, devfile.ConnectionManager)) })
		if c == nil {
			t.FailNow()
		}
		var address ucm.Sockaddr
		copy(address[:], []byte{unix.AF_INET, 0, 0x1b, 0x59, 127, 91, 13, 3})
		create := ucm.CreateID{UID: 1, Response: commandBufferAddr + responseOffset, PS: uint16(msg.PortSpaceTCP)}
		create.QPType = uint8(ib.QPTypeRC)
		must(t, issueCommand(c, ucm.CmdCreateID, create, 4))
		r, _ := uapi.Decode[ucm.CreateIDResp](c.mem[responseOffset:])
		must(t, issueCommand(c, ucm.CmdResolveAddr, ucm.ResolveAddr{ID: r.ID, DstSize: 16, DstAddr: address}, 0))
		c.waitForEvent()
		must(t, issueCommand(c, ucm.CmdResolveRoute, ucm.ResolveRoute{ID: r.ID}, 0))
		c.waitForEvent()
		for _, high := range []uint32{1 << 24, 0} { // high bits that no queue pair number has
			connect := ucm.Connect{ID: r.ID, ConnParam: ucm.ConnParam{QPNum: high | foreign, Valid: 1}}
			if high != 0 && tt.want == nil {
				continue
			}
			if err := issueCommand(c, ucm.CmdConnect, connect, 0); !errors.Is(err, tt.want) {
				t.Errorf("connect queue pair %#[2]x by %[1]s: got %[3]v, want %[4]v", tt.name, high|foreign, err, tt.want)
			}
		}
		c.close()
	}
}
