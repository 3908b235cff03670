package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"syscall"
	"time"

	"verbena/internal/contain"
	"verbena/internal/ctl"
	"verbena/internal/kept"
	"verbena/internal/principal"
	"verbena/internal/quota"
	"verbena/internal/rights"
)

// acceptor accepts the clients of the control socket. It identifies their users, limits their number, and refuses
// clients beyond the limits.
type acceptor struct {
	log        *slog.Logger
	quota      *quota.Ledger
	rights     *rights.Queues // descriptors in transit from users
	kept       *kept.Keeper   // resources that users' programs keep in use
	authority  *principal.Authority
	ended      context.Context            // done when the service begins to stop
	answer     func(c ctl.Conn, who peer) // answers an admitted client until the client closes the connection
	admissions admissions
	reserve    descriptorReserve // for managers
	unheard    perUserCounter    // refused clients, by user, that have not read the reason
	refusing   chan struct{}     // one element for each refused client that the service waits for
}

// acceptClients accepts the clients of l until l is closed.
func (a *acceptor) acceptClients(l *Listener) error {
	var logged time.Time // time of the last log message about failed accepts
	defer a.reserve.allocate()()
	for {
		a.reserve.refill()
		c, err := l.AcceptUnix()
		if err == nil {
			if !a.admissions.add(a, c) {
				time.Sleep(surplusPause)
			}
			continue
		}
		if a.ended.Err() != nil {
			return nil
		}
		switch {
		case errors.Is(err, syscall.ECONNABORTED):
		case isDescriptorShortage(err):
			a.acceptWithReserve(l, err)
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept clients: %w", err)
		default: // lack of memory or of another resource that the kernel limits
			if now := time.Now(); now.Sub(logged) >= time.Minute {
				logged = now
				a.log.Error("accept failed", "err", err)
			}
			time.Sleep(acceptPause)
		}
	}
}

// acceptPause is the time between two attempts to accept clients after an error.
const acceptPause = 100 * time.Millisecond

const (
	// maxUnheard limits the number of refused clients of one user that have not read the reason. Further refused
	// clients receive no reason.
	maxUnheard = 64
	// maxRefusing limits the number of refused clients that the service waits for at the same time.
	maxRefusing = 64
	// refusalTime limits the time for a refused client to read the answer and close its end.
	refusalTime = time.Second
)

// refuseClient sends the error to a client that is not served, and closes the connection. refuseClient starts a
// goroutine for this and does not sleep.
func (a *acceptor) refuseClient(uc *net.UnixConn, who peer, err error) {
	user := a.quota.Account(who.Account)
	c := ctl.Conn{UnixConn: uc, Rights: a.rights.QueueOf(user)}
	go func() {
		heard, counted := a.unheard.countItem(who.Account, maxUnheard)
		if counted {
			contain.RecoverPanic(func() { a.sendRefusal(c, err) }, contain.LogPanic(a.log, "panic while refusing a client",
				uidKey, who.uid))
		}
		a.closeWhenAnswerRead(c, user, heard)
	}()
}

// closeWhenAnswerRead closes a connection. closeWhenAnswerRead calls ended, which ends a charge, when the client has
// read all data or closed its end. Until then the unread data takes memory of the service's control group.
func (a *acceptor) closeWhenAnswerRead(c ctl.Conn, user *quota.User, ended func()) {
	fd, err := rights.DuplicateFD(c)
	c.DrainAndClose()
	if err != nil {
		ended()
		return
	}
	a.kept.ObjectsOf(user).Keep(kept.UnreadSocket(fd), ended)
}

// sendRefusal sends a refused client the reason, and waits until the client closes its end. If the service closed the
// connection with an unread request, the kernel would reset the connection and discard the answer.
func (a *acceptor) sendRefusal(c ctl.Conn, why error) {
	c.SetDeadline(time.Now().Add(refusalTime))
	if c.Send(errorResponse(why), nil) != nil {
		return
	}
	select {
	case a.refusing <- struct{}{}:
		defer func() { <-a.refusing }()
	default:
		return
	}
	c.CloseWrite()
	for {
		var r ctl.Request
		fd, err := c.Receive(&r, ctl.MessageLimits{Size: ctl.MaxRequest})
		if err != nil {
			return
		}
		c.Discard(fd)
	}
}

// admitClient serves a client if its user may have another connection. admitClient returns the account of the user, if
// known.
func (a *acceptor) admitClient(c *net.UnixConn) (_ quota.ID, ok bool) {
	who, err := peerOf(c, a.authority)
	if isDescriptorShortage(err) { // the client used the last descriptor
		a.reserve.warnShortage(a.log, err)
		a.reserve.release()
		who, err = peerOf(c, a.authority)
		a.admitWithReserve(c, who, err)
		return who.Account, err == nil
	}
	if err != nil {
		a.log.Debug("client", uidKey, who.uid, "err", err) // the usual cause is a disconnected client
		a.rights.QueueOf(a.quota.User(who.uid)).DrainAndClose(c)
		return quota.ID{}, false
	}
	a.admitPeer(c, who)
	return who.Account, true
}

func (a *acceptor) admitPeer(c *net.UnixConn, who peer) {
	user := a.quota.Account(who.Account)
	if err := user.Charge(quota.Connections, 1); err != nil {
		if !who.Manager {
			a.refuseClient(c, who, err)
			return
		}
		user = nil
	}
	go func() {
		account := a.quota.Account(who.Account)
		c := ctl.Conn{UnixConn: c, Rights: a.rights.QueueOf(account)}
		a.answer(c, who)
		a.closeWhenAnswerRead(c, account, func() {
			user.Release(quota.Connections, 1)
			a.reserve.refill()
		})
	}()
}

// acceptWithReserve waits a short time for a client and answers the client, after accept(2) found no free descriptor.
func (a *acceptor) acceptWithReserve(l *Listener, lack error) {
	const pause = 50 * time.Millisecond
	a.reserve.warnShortage(a.log, lack)
	if !l.hasWaitingClient(pause) {
		return
	}
	a.reserve.release()
	l.SetDeadline(time.Now().Add(pause)) // the client may have disconnected
	defer l.SetDeadline(time.Time{})
	c, err := l.AcceptUnix()
	if err != nil {
		time.Sleep(pause) // there is still no free descriptor
		return
	}
	who, err := peerOf(c, a.authority)
	a.admitWithReserve(c, who, err)
}

// admitWithReserve answers a client while only the descriptors of the reserve are free. admitWithReserve serves
// managers normally. Other users receive an error that asks them to retry.
func (a *acceptor) admitWithReserve(c *net.UnixConn, who peer, err error) {
	if err == nil && who.Manager {
		a.admitPeer(c, who)
		return
	}
	if err != nil { // an error means an unknown account
		who.Account = quota.ID{UID: who.uid}
	}
	a.refuseClient(c, who, fmt.Errorf("the service has no file descriptor left (RLIMIT_NOFILE): %w", syscall.EMFILE))
}
