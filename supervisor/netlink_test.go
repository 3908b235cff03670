package supervisor

import (
	"encoding/binary"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/internal/principal"
	"verbena/internal/quota"
	"verbena/internal/rights"
)

// TestNetlinkNeedsRightsOfBoth tests that a request has only the rights that both its sender and the opener of the
// socket have.
func TestNetlinkNeedsRightsOfBoth(t *testing.T) {
	w := newFixture(t)
	self := &rights.Sender{PID: os.Getpid(), UID: os.Getuid()}
	const user, other = 1001, 1002
	account := func(uid int) quota.ID { return quota.ID{UID: uid} }
	opener := func(uid int, manages bool) netlinkOpener {
		return netlinkOpener{principal.Principal{Account: account(uid), Manager: manages}, uid}
	}
	for _, c := range []struct {
		what                          string
		sender                        *rights.Sender
		opener                        netlinkOpener
		manages, seesUser, seesOthers bool
	}{
		{"a manager on its own socket", self, opener(self.UID, true), true, true, true},
		{"a user on its own socket", &rights.Sender{PID: 1, UID: user}, opener(user, false), false, true, false},
		{"a manager that writes to a user's socket", self, opener(user, false), false, false, false},
		{"a user on a manager's socket", &rights.Sender{PID: os.Getpid(), UID: user}, opener(0, true), false, false, false},
		{"a user on another user's socket", &rights.Sender{PID: 1, UID: other}, opener(user, false), false, false, false},
		{"an ended manager", &rights.Sender{PID: 1 << 30, UID: 0}, opener(0, true), false, false, false},
		{"an unknown sender", nil, opener(0, true), false, false, false},
	} {
		s := w.sup.netlinkSourceFor(c.sender, c.opener)
		if s.manages != c.manages || s.maySee(account(user)) != c.seesUser || s.maySee(account(other)) != c.seesOthers {
			t.Errorf("%s: got manages %v, sees user %v and others %v", c.what, s.manages, s.maySee(account(user)),
				s.maySee(account(other)))
		}
	}
	anonymous := netlinkOpener{principal.Principal{Account: account(65534), Anonymous: true}, 65534}
	if s := w.sup.netlinkSourceFor(&rights.Sender{PID: 1, UID: 65534}, anonymous); s.manages || s.maySee(account(65534)) {
		t.Error("sees of unmapped users: got true, want false")
	}
	// Two containers may have equal user IDs.
	pod := opener(0, false)
	pod.Account.Container = 7
	s := w.sup.netlinkSourceFor(&rights.Sender{PID: 1, UID: 0}, pod)
	if s.maySee(account(0)) || s.maySee(quota.ID{Container: 8}) || !s.maySee(quota.ID{Container: 7}) {
		t.Error("sees of users of containers: got objects of another container, want only the own ones")
	}
}

// deletedLinks records the names of links in requests to delete them.
type deletedLinks []string

func (d *deletedLinks) AddLink(string, string, string) error { return syscall.EINVAL }

func (d *deletedLinks) DeleteLink(name string) error {
	*d = append(*d, name)
	return nil
}

// TestOnlyManagerDeletesLink tests that only a manager can delete a link.
func TestOnlyManagerDeletesLink(t *testing.T) {
	var links deletedLinks
	s := newFixture(t, func(cfg *SupervisorConfig) { cfg.Links = &links }).sup
	request := make([]byte, unix.SizeofNlMsghdr+8)
	binary.NativeEndian.PutUint32(request, uint32(len(request)))
	binary.NativeEndian.PutUint16(request[4:], 5<<10|4) // RDMA_NL_NLDEV, RDMA_NLDEV_CMD_DELLINK
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	binary.NativeEndian.PutUint16(request[unix.SizeofNlMsghdr:], 8)
	binary.NativeEndian.PutUint16(request[unix.SizeofNlMsghdr+2:], 1) // RDMA_NLDEV_ATTR_DEV_INDEX: 0
	self := rights.Sender{PID: os.Getpid(), UID: os.Getuid()}
	for _, c := range []struct {
		what    string
		manages bool
		want    syscall.Errno
		deleted int
	}{{"a user", false, syscall.EPERM, 0}, {"a manager", true, 0, 1}} {
		n := &netlinkSocket{
			sup: s, user: quota.New(quota.Limits{}).User(1), all: &netlinkUserState{},
			opener: netlinkOpener{principal.Principal{Manager: c.manages}, self.UID},
		}
		answers := n.answerDatagram(&self, request)
		if len(answers) != 1 || binary.NativeEndian.Uint16(answers[0][4:]) != unix.NLMSG_ERROR {
			t.Errorf("%s: got answers %v, want one, NLMSG_ERROR", c.what, answers)
			continue
		}
		got := syscall.Errno(-int32(binary.NativeEndian.Uint32(answers[0][unix.SizeofNlMsghdr:])))
		if got != c.want || len(links) != c.deleted {
			t.Errorf("%s: got %v and deleted %v, want %v and %d links", c.what, got, links, c.want, c.deleted)
		}
	}
}
