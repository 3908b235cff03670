package service

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/ib/slot"
	"verbena/internal/ctl"
	"verbena/internal/fault"
	"verbena/internal/quota"
	"verbena/internal/testutil"
	"verbena/netdev"
)

const testTimeout = 10 * time.Second

// encodeMessage returns an encoded message.
func encodeMessage(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// wantConnectionClosed checks that the other end closes the connection, and returns the data received before the close.
func wantConnectionClosed(t *testing.T, c *net.UnixConn, what string) []byte {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(testTimeout))
	b, err := io.ReadAll(c)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%s: got %v, want a closed connection", what, err)
	}
	return b
}

// TestSilentClientsAreDisconnected tests that a client that sends nothing, or half a message, is disconnected. A client
// that was answered may stay connected.
func TestSilentClientsAreDisconnected(t *testing.T) {
	s, _ := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.10"}})
	const within = 100 * time.Millisecond
	for what, b := range map[string][]byte{
		"nothing": nil, "half a length": {1, 0}, "half a message": {100, 0, 0, 0, '{'},
	} {
		ends := testutil.NewUnixPair(t)
		go s.serveAndClose(ctl.Conn{UnixConn: ends[0]}, userPeer(4242), within)
		if _, err := ends[1].Write(b); err != nil {
			t.Fatal(err)
		}
		wantConnectionClosed(t, ends[1], what)
	}
	ends := testutil.NewUnixPair(t)
	go s.serveAndClose(ctl.Conn{UnixConn: ends[0]}, userPeer(4242), within)
	c := ctl.NewClient(ends[1], os.Getpid(), os.Geteuid())
	for range 2 {
		if _, err := c.Do(&ctl.Request{Op: ctl.OpInfo}); err != nil {
			t.Fatal(err)
		}
		ends[1].SetReadDeadline(time.Now().Add(2 * within))
		if _, err := ends[1].Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("an answered client: got %v, want the connection open", err)
		}
		ends[1].SetReadDeadline(time.Time{})
	}
	// The rest of a later message must arrive within the time too.
	ends = testutil.NewUnixPair(t)
	got := make(chan error, 1)
	go func() {
		_, err := ctl.Conn{UnixConn: ends[0]}.Receive(new(ctl.Request), ctl.MessageLimits{Size: ctl.MaxRequest, Rest: within})
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("before the first byte of a message: got %v, want the connection open", err)
	case <-time.After(2 * within):
	}
	ends[1].Write([]byte{100, 0})
	select {
	case err := <-got:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("half a message: got %v, want ErrDeadlineExceeded", err)
		}
	case <-time.After(testTimeout):
		t.Error("half a message: got no disconnection in time, want one")
	}
}

// TestMessageSizeIsChecked tests that the service checks the size of a request, and of a launcher's answer, before it
// reads the rest.
func TestMessageSizeIsChecked(t *testing.T) {
	s, _ := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.11"}})
	for _, size := range []uint32{ctl.MaxRequest + 1, 12 << 20, 1<<32 - 1} {
		ends := testutil.NewUnixPair(t)
		go s.ServeConn(ends[0])
		ends[1].Write(binary.LittleEndian.AppendUint32(nil, size))
		if b := wantConnectionClosed(t, ends[1], fmt.Sprint(size)); len(b) != 0 {
			t.Errorf("message of %d bytes: got answer %q, want none", size, b)
		}
	}
	ends := testutil.NewUnixPair(t)
	go s.ServeConn(ends[0])
	c := ctl.NewClient(ends[1], os.Getpid(), os.Geteuid())
	if _, err := c.Do(&ctl.Request{Op: ctl.OpInfo, Name: strings.Repeat("x", ctl.MaxRequest-200)}); err != nil {
		t.Errorf("large request: got %v, want success", err)
	}
	ends = testutil.NewUnixPair(t)
	go func() {
		io.ReadFull(ends[1], make([]byte, 4))
		ends[1].Write(binary.LittleEndian.AppendUint32(nil, ctl.MaxHelpAnswer+1))
	}()
	if _, err := (&remoteHelper{c: ctl.Conn{UnixConn: ends[0]}}).OpenMem(1); err == nil ||
		!strings.Contains(err.Error(), "longer than") {
		t.Errorf("oversized answer of a launcher: got %v, want an error", err)
	}
}

// countDescriptorsOf counts the descriptors of this process that refer to a file.
func countDescriptorsOf(t *testing.T, to string) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if l, _ := os.Readlink("/proc/self/fd/" + e.Name()); l == to {
			n++
		}
	}
	return n
}

// TestDescriptorsDoNotLeak tests that the service closes descriptors sent with a message, whether the request uses
// a descriptor, is malformed or is refused.
func TestDescriptorsDoNotLeak(t *testing.T) {
	s, _ := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.12"}})
	path := filepath.Join(t.TempDir(), "passed")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd := int(f.Fd())
	for what, b := range map[string][]byte{
		"info":   encodeMessage(t, &ctl.Request{Op: ctl.OpInfo, Protocol: ctl.ProtocolVersion}),
		"attach": encodeMessage(t, &ctl.Request{Op: ctl.OpAttach, Protocol: ctl.ProtocolVersion, Attach: &ctl.Attach{}}),
		"capture": encodeMessage(t, &ctl.Request{Op: ctl.OpCapture, Protocol: ctl.ProtocolVersion,
			Capture: &ctl.Capture{}}),
		"refused":   encodeMessage(t, &ctl.Request{Op: ctl.OpLinkDel, Protocol: ctl.ProtocolVersion}),
		"malformed": {2, 0, 0, 0, '{', '{'},
		"too long":  {255, 255, 255, 255},
		"cut":       {9, 0, 0, 0, 1},
	} {
		for _, n := range []int{1, 2, 4, 5, 100} {
			ends := testutil.NewUnixPair(t)
			served := make(chan struct{})
			go func() {
				defer close(served)
				s.serveAndClose(ctl.Conn{UnixConn: ends[0]}, peer{uid: 4242, pid: os.Getpid()}, testTimeout)
			}()
			fds := make([]int, n)
			for i := range fds {
				fds[i] = fd
			}
			if _, _, err := ends[1].WriteMsgUnix(b, unix.UnixRights(fds...), nil); err != nil {
				t.Fatal(err)
			}
			ends[1].CloseWrite()
			wantConnectionClosed(t, ends[1], what)
			<-served
			if got := countDescriptorsOf(t, path); got != 1 {
				t.Fatalf("%s with %d descriptors: got %d open descriptors, want 0", what, n, got-1)
			}
		}
	}
}

// TestAttachUsesKernelPID tests that the attached process is the process reported by the kernel, not a process
// named by the client.
func TestAttachUsesKernelPID(t *testing.T) {
	s, _ := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.13"}})
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	request := encodeMessage(t, map[string]any{"Protocol": ctl.ProtocolVersion, "Op": ctl.OpAttach,
		"Attach": map[string]any{"PID": 1, "UID": 0, "Args": []string{"x"}}})
	for pid, want := range map[int]string{
		os.Getpid(): fmt.Sprintf("attach process %d:", os.Getpid()), 0: "pid namespace",
	} {
		ends := testutil.NewUnixPair(t)
		who, err := peerOf(ends[0], s.authority)
		if err != nil {
			t.Fatal(err)
		}
		who.pid = pid
		go s.serveAndClose(ctl.Conn{UnixConn: ends[0]}, who, testTimeout)
		if _, _, err := ends[1].WriteMsgUnix(request, unix.UnixRights(int(f.Fd())), nil); err != nil {
			t.Fatal(err)
		}
		var a ctl.Response
		if _, err := (ctl.Conn{UnixConn: ends[1]}).Receive(&a, ctl.MessageLimits{Size: ctl.MaxResponse}); err != nil ||
			!strings.Contains(a.Error, want) {
			t.Errorf("attach process %d: got %q, %v, want %q", pid, a.Error, err, want)
		}
	}
}

// TestSessionInfoIsFromKernel tests that the description of a session comes from the kernel.
func TestSessionInfoIsFromKernel(t *testing.T) {
	got := peer{pid: 17, uid: 1001}.sessionInfo(&ctl.Attach{Args: []string{strings.Repeat("x", 2*ctl.MaxArgs)}}, os.Stdin,
		&remoteHelper{})
	if got.LauncherPID != 17 || got.UID != 1001 || got.Pidfd != os.Stdin || got.Helper == nil ||
		len(got.Args) != 1 || len(got.Args[0]) > ctl.MaxArgs+3 {
		t.Errorf("session: got %+v, want the kernel's values and limited arguments", got)
	}
}

// TestUserSeesOnlyOwnHoldings tests that a user sees only the user's own holdings.
func TestUserSeesOnlyOwnHoldings(t *testing.T) {
	s := &Service{quota: quota.New(quota.Limits{quota.QPs: {PerUser: 5, Total: 9}})}
	for _, uid := range []int{1001, 1002} {
		if err := s.quota.User(uid).Charge(quota.QPs, 2); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.Users(userPeer(1001).SeesAccount); len(got) != 1 || got[0].UID != 1001 ||
		got[0].Holds[quota.QPs] != (ctl.UsageInfo{Kind: "qps", Held: 2, Limit: 5}) {
		t.Errorf("resources visible to user 1001: got %+v, want only the user's own", got)
	}
	if got := s.Users(managerPeer().SeesAccount); len(got) != 3 || got[2].UID != -1 ||
		got[2].Holds[quota.QPs] != (ctl.UsageInfo{Kind: "qps", Held: 4, Limit: 9}) {
		t.Errorf("resources visible to root: got %+v, want those of all users", got)
	}
}

// TestConnectionsPerUserAreLimited tests the limit of connections per user. The service refuses one more connection,
// exempts managers, and does not count closed connections.
func TestConnectionsPerUserAreLimited(t *testing.T) {
	var log testutil.Buffer
	limits := DefaultLimits(true)
	limits[quota.Connections] = quota.Limit{PerUser: 3, Total: 100}
	s, err := newService(Options{Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{"127.91.8.14"}}}, Limits: &limits,
		Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	connect := func(uid int) *ctl.Client {
		ends := testutil.NewUnixPair(t)
		who := managerPeer()
		if uid != 0 {
			who = userPeer(uid)
		}
		s.acceptor.admitPeer(ends[0], who)
		return ctl.NewClient(ends[1], os.Getpid(), os.Geteuid())
	}
	ask := func(c *ctl.Client) error {
		_, err := c.Do(&ctl.Request{Op: ctl.OpInfo})
		return err
	}
	var first []*ctl.Client
	for range 3 {
		c := connect(4242)
		if err := ask(c); err != nil {
			t.Fatal(err)
		}
		first = append(first, c)
	}
	if err := ask(connect(4242)); !errors.Is(err, syscall.EAGAIN) ||
		!strings.Contains(err.Error(), "--limit connections=") {
		t.Errorf("connection beyond the limit: got %v, want EAGAIN", err)
	}
	testutil.Eventually(t, "the log to name the limit", func() bool {
		return countLines(&log, "user 4242 holds 3 connections") > 0
	})
	if err := ask(connect(4243)); err != nil {
		t.Errorf("connection of another user: got %v, want success", err)
	}
	for range 5 {
		if err := ask(connect(0)); err != nil {
			t.Errorf("connection of root: got %v, want success", err)
		}
	}
	first[0].Close()
	testutil.Eventually(t, "a connection after a close to succeed", func() bool { return ask(connect(4242)) == nil })
}

// TestPendingRequestsDelayNoOtherUser tests that pending requests of a user delay no requests of other users, and that
// their number is limited.
func TestPendingRequestsDelayNoOtherUser(t *testing.T) {
	var q perUserCounter
	var done []func()
	for range maxRequests {
		d, ok := q.countItem(quota.ID{UID: 4242}, maxRequests)
		if !ok {
			t.Fatal("begin below the limit: got a refusal, want success")
		}
		done = append(done, d)
	}
	if _, ok := q.countItem(quota.ID{UID: 4242}, maxRequests); ok {
		t.Error("begin beyond the limit: got success, want an error")
	}
	if _, ok := q.countItem(quota.ID{UID: 4243}, maxRequests); !ok {
		t.Error("begin for another user: got an error")
	}
	done[0]()
	if _, ok := q.countItem(quota.ID{UID: 4242}, maxRequests); !ok {
		t.Error("begin after another was done: got an error")
	}
}

// TestRequestsOfConnectionCount tests that the requests that change the state of a connection count against the limit
// of requests in progress.
func TestRequestsOfConnectionCount(t *testing.T) {
	s, _ := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.44"}})
	ends := testutil.NewUnixPair(t)
	go s.serveAndClose(ctl.Conn{UnixConn: ends[0]}, userPeer(4242), 0)
	user := ctl.NewClient(ends[1], os.Getpid(), os.Geteuid())
	var all []func()
	for range maxRequests {
		done, ok := s.requests.countItem(quota.ID{UID: 4242}, maxRequests)
		if !ok {
			t.Fatal("begin a request below the limit: got a refusal, want success")
		}
		all = append(all, done)
	}
	requests := []*ctl.Request{
		{Op: ctl.OpInfo},
		{Op: ctl.OpRequests, Requests: &ctl.RequestTrace{End: true}},
		{Op: ctl.OpDecisions},
		{Op: ctl.OpFaultDecisions, Weak: &ctl.Weak{}},
	}
	for _, r := range requests {
		if _, err := user.Do(r); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("%s beyond the limit: got %v, want EBUSY", r.Op, err)
		}
	}
	all[0]()
	for _, r := range requests {
		testutil.Eventually(t, string(r.Op)+" below the limit", func() bool {
			_, err := user.Do(r)
			return !errors.Is(err, syscall.EBUSY)
		})
	}
}

// TestEchoedDataIsLimited tests that the service answers and logs only a limited length of the client's data.
func TestEchoedDataIsLimited(t *testing.T) {
	var log testutil.Buffer
	s, err := newService(Options{
		Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{"127.91.8.15"}}}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	long := strings.Repeat("y", ctl.MaxRequest/2)
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, r := range []*ctl.Request{
		{Op: ctl.Op(long)}, {Op: ctl.OpStatShow, Name: long}, {Op: ctl.OpLinkDel, Name: long},
		{Op: ctl.OpAttach, Attach: &ctl.Attach{Args: []string{long, long[:1000]}}},
	} {
		for _, uid := range []int{4242, 0} {
			ends := testutil.NewUnixPair(t)
			go s.serveAndClose(ctl.Conn{UnixConn: ends[0]}, peer{uid: uid, pid: os.Getpid()}, testTimeout)
			r.Protocol = ctl.ProtocolVersion
			if err := (ctl.Conn{UnixConn: ends[1]}).Send(r, f); err != nil {
				t.Fatal(err)
			}
			var a ctl.Response
			if _, err := (ctl.Conn{UnixConn: ends[1]}).Receive(&a, ctl.MessageLimits{Size: ctl.MaxResponse}); err != nil ||
				a.Error == "" || len(a.Error) > 1000 {
				t.Errorf("%.20s: got an error of %d bytes and %v, want 1 to 1000 bytes", r.Op, len(a.Error), err)
			}
		}
	}
	ends := testutil.NewUnixPair(t)
	go s.serveAndClose(ctl.Conn{UnixConn: ends[0]}, userPeer(4242), testTimeout)
	ends[1].Write(encodeMessage(t, map[string]any{"ID": json.Number(strings.Repeat("9", ctl.MaxRequest/2))}))
	wantConnectionClosed(t, ends[1], "a malformed message")
	if n := len(log.String()); n == 0 || n > 4000 {
		t.Errorf("log: got %d bytes, want 1 to 4000", n)
	}
	if got := strings.Join(ctl.TruncateArgs([]string{"a", long, "b"}), " "); len(got) > ctl.MaxArgs+10 ||
		!strings.HasPrefix(got, "a yyy") || !strings.HasSuffix(got, "y...") {
		t.Errorf("long arguments: got %d bytes, want a limited number and their beginning", len(got))
	}
	if got := ctl.TruncateArgs([]string{"a", "b"}); len(got) != 2 {
		t.Errorf("short arguments: got %q, want both arguments", got)
	}
}

// TestPanicFailsOnlyRequest tests that a panic in a request fails only that request.
func TestPanicFailsOnlyRequest(t *testing.T) {
	s, c := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.16"}})
	broken := &Service{log: s.log, requestTimeout: testTimeout, restOfMessage: testTimeout, authority: s.authority}
	ends := testutil.NewUnixPair(t)
	go broken.ServeConn(ends[0])
	b := ctl.NewClient(ends[1], os.Getpid(), os.Geteuid())
	for range 2 {
		if _, err := b.Do(&ctl.Request{Op: ctl.OpResShow}); !errors.Is(err, syscall.EIO) {
			t.Errorf("request that panics: got %v, want EIO", err)
		}
	}
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := b.Attach(ctl.Attach{}, f); err == nil {
		t.Error("attach without a program: got success, want an error")
	}
	if _, err := c.Do(&ctl.Request{Op: ctl.OpInfo}); err != nil {
		t.Errorf("another client: got %v, want success", err)
	}
}

// TestBlockedDeviceDelaysNoOther tests that the removal of a device that is blocked on a program's memory delays
// neither other requests nor the end of the service.
func TestBlockedDeviceDelaysNoOther(t *testing.T) {
	f := staticInterfaces{make(chan struct{})}
	s, err := newService(Options{Interfaces: f,
		Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{"127.91.8.17"}},
			{Name: "rxe1", Addrs: []string{"127.91.8.18"}}}})
	if err != nil {
		t.Fatal(err)
	}
	s.closeTimeout = testTimeout
	stuck := make(chan struct{})
	if err := s.core.RegisterClient(&ib.Client{
		Name: "stuck",
		Add:  func(*ib.Device) (any, error) { return nil, nil },
		Remove: func(d *ib.Device, _ any) {
			if d.Name() == "rxe0" {
				<-stuck
			}
		},
	}); err != nil {
		t.Fatal(err)
	}
	ends := testutil.NewUnixPair(t)
	go s.ServeConn(ends[0])
	c := ctl.NewClient(ends[1], os.Getpid(), os.Geteuid())
	do := func(r *ctl.Request) error {
		t.Helper()
		began := time.Now()
		_, err := c.Do(r)
		if d := time.Since(began); d > testTimeout {
			t.Errorf("duration of %s: got %v, want at most %v", r.Op, d, testTimeout)
		}
		return err
	}
	go s.DevReset(ctl.DevReset{Name: "rxe0"})
	testutil.Eventually(t, "the reset to begin", func() bool {
		return s.Devs(managerPeer().SeesAccount)[0].State == slot.Recovering.String()
	})
	for _, r := range []*ctl.Request{
		{Op: ctl.OpLinkShow}, {Op: ctl.OpDevShow}, {Op: ctl.OpStatShow}, {Op: ctl.OpResShow}, {Op: ctl.OpFaultShow}, {
			Op: ctl.OpInfo},
		{Op: ctl.OpDevReset, Reset: &ctl.DevReset{Name: "rxe1"}},
		{Op: ctl.OpLinkAdd, Link: &ctl.LinkSpec{Name: "rxe2", Addrs: []string{"127.91.8.19"}}},
	} {
		if err := do(r); err != nil {
			t.Errorf("%s beside the stuck device: got %v, want success", r.Op, err)
		}
	}
	go s.links.deleteLink("rxe0")
	testutil.Eventually(t, "the removal to begin", func() bool {
		if err := do(&ctl.Request{Op: ctl.OpLinkShow}); err != nil {
			t.Fatal(err)
		}
		return s.links.all()[0].spec.Name != "rxe0"
	})
	if err := do(&ctl.Request{Op: ctl.OpLinkShow}); err != nil {
		t.Errorf("link show during the removal: got %v, want success", err)
	}
	began := time.Now()
	ended := s.Close()
	if d := time.Since(began); d > 2*testTimeout {
		t.Errorf("duration of Close: got %v, want at most %v", d, 2*testTimeout)
	}
	// The removal is still in progress. The service no longer lists that device, and everything else has ended.
	if ended != nil && !errors.Is(ended, syscall.ETIMEDOUT) {
		t.Errorf("Close: got %v, want success or ETIMEDOUT", ended)
	}
	close(stuck)
}

// TestRequestTimesOut tests that a request is answered after a timeout, and counts against its user until it ends.
func TestRequestTimesOut(t *testing.T) {
	s := &Service{log: slog.New(slog.DiscardHandler), requestTimeout: 20 * time.Millisecond, restOfMessage: time.Second}
	stuck := make(chan struct{})
	ended := make(chan struct{})
	_, err := s.answerWithTimeout(&ctl.Request{Op: ctl.OpResShow}, func() (*ctl.Response, error) {
		defer close(ended)
		<-stuck
		return nil, nil
	})
	if !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("bounded: got %v, want ETIMEDOUT", err)
	}
	close(stuck)
	<-ended
	s.requestTimeout = testTimeout
	if a, err := s.answerWithTimeout(&ctl.Request{}, func() (*ctl.Response, error) {
		return &ctl.Response{ID: 7}, nil
	}); err != nil || a.ID != 7 {
		t.Errorf("bounded after the end: got %+v, %v, want the answer", a, err)
	}
}

// TestBlockedCloseNamesStep tests that the error of a blocked Close names the blocked step, and that Abandon removes
// the directory on /dev/shm.
func TestBlockedCloseNamesStep(t *testing.T) {
	s, err := newService(Options{Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{"127.91.8.20"}}}})
	if err != nil {
		t.Fatal(err)
	}
	s.closeTimeout = 200 * time.Millisecond
	stuck := make(chan struct{})
	gone := make(chan struct{})
	if err := s.core.RegisterClient(&ib.Client{
		Name:   "stuck",
		Add:    func(*ib.Device) (any, error) { return nil, nil },
		Remove: func(*ib.Device, any) { <-stuck; close(gone) },
	}); err != nil {
		t.Fatal(err)
	}
	ends := testutil.NewUnixPair(t)
	if _, err := s.programs.attach(s.ended, ctl.Conn{UnixConn: ends[0]}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); !errors.Is(err, syscall.ETIMEDOUT) || !strings.Contains(err.Error(), "device rxe0") {
		t.Errorf("Close: got %v, want ETIMEDOUT", err)
	}
	s.Abandon()
	wantConnectionClosed(t, ends[1], "a launcher")
	if _, err := os.Stat(s.dir.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory after Abandon: got %v, want ErrNotExist", err)
	}
	close(stuck)
	<-gone
}

// TestYieldRefusesPrograms tests that a service yields once, if a client started the service and it is not in use.
// After the yield no program can attach.
func TestYieldRefusesPrograms(t *testing.T) {
	made := func(onDemand bool) *Service {
		s, err := newService(Options{Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{"127.91.8.22"}}},
			OnDemand: onDemand})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := made(false)
	if err := s.yield(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("yield of a service started by a user: got %v, want EBUSY", err)
	}
	s.Close()

	s = made(true)
	defer s.Close()
	ends := testutil.NewUnixPair(t)
	done, err := s.programs.attach(s.ended, ctl.Conn{UnixConn: ends[0]})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.yield(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("yield with a program attached: got %v, want EBUSY", err)
	}
	done()
	if _, err := s.addFault(ctl.FaultRule{Dev: "rxe0", Rule: fault.Rule{Drop: 0.5}}); err != nil {
		t.Fatal(err)
	}
	s.links.mu.Lock()
	kept := s.isChangedByHandLocked()
	s.links.mu.Unlock()
	if err := s.yield(); !errors.Is(err, syscall.EBUSY) || !kept {
		t.Errorf("yield with a fault rule: got %v, want EBUSY; kept when idle: %v", err, kept)
	}
	if err := s.clearFaults("", 0); err != nil {
		t.Fatal(err)
	}
	s.links.mu.Lock()
	kept = s.isChangedByHandLocked()
	s.links.mu.Unlock()
	if kept {
		t.Error("keep when idle: got true after the rules were cleared, want false")
	}
	if err := s.links.createLink(ctl.LinkSpec{Name: "rxe1", Addrs: []string{"127.91.8.23"}}); err != nil {
		t.Fatal(err)
	}
	if err := s.yield(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("yield with a device added: got %v, want EBUSY", err)
	}
	s.links.mu.Lock()
	s.links.configured = false
	s.links.mu.Unlock()
	if err := userPeer(os.Geteuid() + 1).authorize(ctl.OpYield); !errors.Is(err, syscall.EPERM) {
		t.Errorf("yield for another user: got %v, want EPERM", err)
	}
	if err := s.yield(); err != nil {
		t.Errorf("yield while idle: got %v, want success", err)
	}
	_, err = s.programs.attach(s.ended, ctl.Conn{UnixConn: ends[0]})
	if !errors.Is(err, syscall.ESHUTDOWN) || !ctl.IsEnding(err) {
		t.Errorf("attach after the yield: got %v, want ESHUTDOWN", err)
	}
}

// staticInterfaces provides network interfaces that never change.
type staticInterfaces struct{ closed chan struct{} }

func (f staticInterfaces) All() ([]netdev.Interface, error) { return nil, errors.New("none") }
func (f staticInterfaces) Wait() error                      { <-f.closed; return os.ErrClosed }
func (f staticInterfaces) Close() error                     { close(f.closed); return nil }

// TestDescriptorShortageStillServesManagers tests that a service without free descriptors still serves managers, does
// not spin, and does not flood the log.
func TestDescriptorShortageStillServesManagers(t *testing.T) {
	var log testutil.Buffer
	s, err := newService(Options{
		Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{"127.91.8.21"}}}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	loc := ctl.Location{Socket: filepath.Join(t.TempDir(), "sock")}
	l, err := Listen(loc, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.CloseAndUnlock()
	go s.Serve(l)
	warm, err := ctl.Dial(loc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := warm.Do(&ctl.Request{Op: ctl.OpInfo}); err != nil {
		t.Fatal(err)
	}
	warm.Close()
	// The clients open their descriptors before fill allocates the others.
	const clients = 6
	var fds [clients]int
	for i := range fds {
		if fds[i], err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	low := unix.Rlimit{Cur: 300, Max: old.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &old)
	var taken []int
	defer func() {
		for _, fd := range taken {
			unix.Close(fd)
		}
	}()
	// fill allocates all free descriptors, including descriptors that the service closes meanwhile.
	fill := func() {
		for quiet := 0; quiet < 5; quiet++ {
			time.Sleep(10 * time.Millisecond)
			for {
				f, err := unix.Open(os.DevNull, unix.O_CLOEXEC, 0)
				if err != nil {
					break
				}
				taken, quiet = append(taken, f), 0
			}
		}
	}
	used := func() time.Duration {
		var r unix.Rusage
		unix.Getrusage(unix.RUSAGE_SELF, &r)
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	for free, fd := range fds { // a client can use the last descriptor, or one of the last few
		testutil.Eventually(t, "the descriptors for managers", func() bool {
			s.acceptor.reserve.mu.Lock()
			defer s.acceptor.reserve.mu.Unlock()
			return len(s.acceptor.reserve.files) == spareDescriptors
		})
		fill()
		for range free {
			unix.Close(taken[len(taken)-1])
			taken = taken[:len(taken)-1]
		}
		before := used()
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: loc.Socket}); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Write(fd, encodeMessage(t, &ctl.Request{Protocol: ctl.ProtocolVersion,
			Op: ctl.OpLinkShow})); err != nil {
			t.Fatalf("client with %d free descriptors: got %v, want success", free, err)
		}
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5})
		b := make([]byte, 4096)
		n, err := unix.Read(fd, b)
		if err != nil || !bytes.Contains(b[:max(n, 0)], []byte("rxe0")) {
			t.Errorf("manager with %d free descriptors: got %q, %v, want an answer", free, b[:max(n, 0)], err)
		}
		unix.Close(fd)
		fds[free] = -1
		if free > 0 {
			continue
		}
		time.Sleep(500 * time.Millisecond)
		if d := used() - before; d > 300*time.Millisecond {
			t.Errorf("processor time: got %v, want at most 300ms", d)
		}
		if n := strings.Count(log.String(), "serving managers only"); n != 1 {
			t.Errorf("messages about the lack of descriptors: got %d, want 1:\n%s", n, log.String())
		}
		if n := strings.Count(log.String(), "\n"); n > 3 {
			t.Errorf("log: got %d lines, want at most 3:\n%s", n, log.String())
		}
	}
}

// TestTakeOverKeepsServiceInUse tests that TakeOver ends a service after its program ended a moment ago, and keeps a
// service in use.
func TestTakeOverKeepsServiceInUse(t *testing.T) {
	s, err := newService(Options{Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{"127.91.8.24"}}}, OnDemand: true})
	if err != nil {
		t.Fatal(err)
	}
	loc := ctl.Location{Socket: filepath.Join(t.TempDir(), "sock")}
	l, err := Listen(loc, nil)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Serve(l)
		s.Close()
		l.CloseAndUnlock()
	}()
	ends := testutil.NewUnixPair(t)
	done, err := s.programs.attach(s.ended, ctl.Conn{UnixConn: ends[0]})
	if err != nil {
		t.Fatal(err)
	}
	if err := TakeOver(loc); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("TakeOver of a service in use: got %v, want EADDRINUSE", err)
	}
	time.AfterFunc(programEndDetectionTime/5, done)
	if err := TakeOver(loc); err != nil {
		t.Errorf("TakeOver of a service that is in use for a short time: got %v, want success", err)
	}
	<-ended
}

// TestDeviceCommandsKeepServiceAlive tests which commands for a device keep an idle service alive, because its end
// would undo them.
func TestDeviceCommandsKeepServiceAlive(t *testing.T) {
	s, err := newService(Options{
		Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{"127.91.8.24"}}}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, c := range []struct {
		name string
		f    func() error
		want bool
	}{
		{"reset", func() error { return s.DevReset(ctl.DevReset{Name: "rxe0"}) }, false},
		{"reset armed", func() error { return s.DevReset(ctl.DevReset{Name: "rxe0", AtWR: 1000}) }, true},
		{"reset canceled", func() error { return s.DevReset(ctl.DevReset{Name: "rxe0", Cancel: true}) }, false},
		{"unplug", func() error { return s.DevUnplug("rxe0") }, true},
		{"plug", func() error { return s.DevPlug("rxe0") }, false},
		{"hang", func() error { return s.hangDevice("rxe0") }, true},
		{"reset of a device that hangs", func() error { return s.DevReset(ctl.DevReset{Name: "rxe0"}) }, false},
		{"event", func() error { return s.raiseDevEvent(ctl.DevEvent{Name: "rxe0", Event: "client_reregister"}) }, false},
		{"reset, unreachable", func() error { return s.DevReset(ctl.DevReset{Name: "rxe0", Unreachable: true}) }, true},
		{"plug after that", func() error { return s.DevPlug("rxe0") }, false},
		{"link down", func() error { return s.links.changeLink(ctl.LinkSet{Name: "rxe0", State: ctl.LinkDown}) }, true},
	} {
		if err := c.f(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		kept := func() bool {
			s.links.mu.Lock()
			defer s.links.mu.Unlock()
			return s.isChangedByHandLocked()
		}
		if !testutil.PollUntil(func() bool { return kept() == c.want }) { // an unreachable device is reset in the background
			t.Errorf("keep when idle, after %s: got %v, want %v", c.name, kept(), c.want)
		}
	}
}
