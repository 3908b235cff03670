package verbs

import (
	"encoding/json"
	"errors"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"verbena/verbs/provider"
)

// TestDevicesListedByName checks that devices with a provider are listed by name, and that devices that are being
// removed are omitted.
func TestDevicesListedByName(t *testing.T) {
	dir := t.TempDir()
	for name, files := range map[string]map[string]string{
		"uverbs0": {"ibdev": "rxe1\n", "abi_version": "2\n"},
		"uverbs1": {"ibdev": "rxe0\n", "abi_version": "2\n"},
		"uverbs2": {"ibdev": "mlx5_0\n", "abi_version": "1\n"}, // no provider
		"uverbs3": {"ibdev": "rxe3\n", "abi_version": "77\n"},  // too new
		"uverbs4": {"ibdev": "rxe4\n"},                         // being removed
		"uverbs5": {"ibdev": "rxe5\n", "abi_version": "two\n"},
	} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		for f, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name, f), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, abi := range map[string]string{"uverbs6": "1\n", "uverbs7": "9\n"} { // driver efa; uverbs7 is too new
		driver := filepath.Join(dir, name, "device", "driver")
		err := errors.Join(os.MkdirAll(filepath.Dir(driver), 0o755), os.Symlink("../../bus/pci/drivers/efa", driver),
			os.WriteFile(filepath.Join(dir, name, "ibdev"), []byte("rdmap0s6\n"), 0o644),
			os.WriteFile(filepath.Join(dir, name, "abi_version"), []byte(abi), 0o644))
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "abi_version"), []byte("6\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	list, err := readDevices(dir, "/dev/infiniband")
	if err != nil || len(list) != 3 || list[0].Name != "rdmap0s6" || list[0].Path != "/dev/infiniband/uverbs6" ||
		list[1].Name != "rxe0" || list[1].Path != "/dev/infiniband/uverbs1" || list[2].Name != "rxe1" {
		t.Errorf("devices: got %v with error %v, want rdmap0s6, rxe0 and rxe1", list, err)
	}
	if list, err := readDevices(filepath.Join(dir, "none"), ""); err != nil || len(list) != 0 {
		t.Errorf("devices without RDMA: got %v with error %v, want none", list, err)
	}
}

// TestEndpointRoundTrip checks that an endpoint is unchanged by encoding and decoding.
func TestEndpointRoundTrip(t *testing.T) {
	want := Endpoint{GID: GIDOf(netip.MustParseAddr("10.0.0.7")), QPN: 0x123456, PSN: 0x654321, QKey: 7, MTU: 5}
	b, err := want.MarshalBinary()
	if err != nil || len(b) != EndpointSize {
		t.Fatalf("got %d bytes, %v, want %d", len(b), err, EndpointSize)
	}
	var got Endpoint
	if err := got.UnmarshalBinary(b); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if err := got.UnmarshalBinary(b[1:]); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("UnmarshalBinary of a short endpoint: got %v, want EINVAL", err)
	}
	if s := want.GID.String(); s != "10.0.0.7" {
		t.Errorf("GID: got %s, want 10.0.0.7", s)
	}
}

// TestTimesRoundUpToCodes checks that times are rounded up to the next code of the device.
func TestTimesRoundUpToCodes(t *testing.T) {
	for d, want := range map[time.Duration]uint8{
		0: 14, 1: 1, 8192: 1, 8193: 2, 67 * time.Millisecond: 14, 68 * time.Millisecond: 15, time.Hour: 30, 3 * time.Hour: 31,
		1 << 62: 31,
	} {
		if got := timeoutCode(d); got != want {
			t.Errorf("timeoutCode(%v): got %d, want %d", d, got, want)
		}
	}
	for d, want := range map[time.Duration]uint8{
		0: 12, 1: 1, 10 * time.Microsecond: 1, 11 * time.Microsecond: 2, 640 * time.Microsecond: 12,
		491520 * time.Microsecond: 31, time.Second: 0,
	} {
		if got := rnrCode(d); got != want {
			t.Errorf("rnrCode(%v): got %d, want %d", d, got, want)
		}
	}
	for n, want := range map[int]uint8{0: 7, Never: 0, 3: 3, 9: 7} {
		if got := retryCode(n); got != want {
			t.Errorf("count(%d): got %d, want %d", n, got, want)
		}
	}
}

// TestStatusDescriptions checks that each status has a description, and that errors.Is can compare errors with each
// status.
func TestStatusDescriptions(t *testing.T) {
	for s := Success; s <= UnspecifiedFailure; s++ {
		if s.Error() == "" || s.String() == "" {
			t.Errorf("text of status %d: got none, want a description", s)
		}
	}
	if Status(999).Error() == "" {
		t.Error("text of an unknown status: got none, want a description")
	}
	err := CompletionError(&WC{ID: 5, QPN: 17, Status: RetryExceeded})
	if !errors.Is(err, RetryExceeded) || errors.Is(err, Flushed) {
		t.Errorf("got %v", err)
	}
	if want := "verbs: work request 5 of QP 17: transport retries exceeded: the peer does not answer"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
	if err := CompletionError(&WC{}); err != nil {
		t.Errorf("a success: got %v", err)
	}
}

// TestGatherReusesBuffer checks that the buffer for elements is reused.
func TestGatherReusesBuffer(t *testing.T) {
	var scratch []provider.SGE
	one, list := SGE{Addr: 1, Length: 2, LKey: 3}, []SGE{{Addr: 4}, {Addr: 5}}
	if got := gatherSGL(&scratch, one, list); len(got) != 3 || got[0] != provider.SGE(one) || got[2].Addr != 5 {
		t.Errorf("got %v", got)
	}
	if got := gatherSGL(&scratch, SGE{}, nil); len(got) != 0 {
		t.Errorf("no elements: got %v", got)
	}
	if n := testing.AllocsPerRun(10, func() { gatherSGL(&scratch, one, list) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// TestSGEChecksRange checks that SGE returns a valid element or panics. The length of an element has 32 bits.
func TestSGEChecksRange(t *testing.T) {
	const size = 5 << 30
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		t.Skip(err)
	}
	defer unix.Munmap(mem)
	m := &MR{mem: mem, iova: 1 << 40, lkey: 7, rkey: 8}
	if got, want := m.SGE(4<<30, 100), (SGE{1<<40 + 4<<30, 100, 7}); got != want {
		t.Errorf("SGE: got %v, want %v", got, want)
	}
	if got, want := m.Remote(size), (Remote{1<<40 + size, 8}); got != want {
		t.Errorf("Remote: got %v, want %v", got, want)
	}
	for name, f := range map[string]func(){
		"SGE of 4 GiB":     func() { m.SGE(0, 4<<30) },
		"SGE behind":       func() { m.SGE(size-1, 2) },
		"SGE of the most":  func() { m.SGE(math.MaxInt, 1) },
		"SGE before":       func() { m.SGE(-1, 1) },
		"SGE of -1 bytes":  func() { m.SGE(1, -1) },
		"Remote behind":    func() { m.Remote(size + 1) },
		"Remote before it": func() { m.Remote(-1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: got no panic, want a panic", name)
				}
			}()
			f()
		}()
	}
}

// TestEndpointJSONRoundTrip checks that an endpoint in JSON is readable and can be decoded.
func TestEndpointJSONRoundTrip(t *testing.T) {
	for _, text := range []string{"127.0.0.1", "fd00::7", "::"} {
		e := Endpoint{GID: GIDOf(netip.MustParseAddr(text)), QPN: 1, PSN: 2, QKey: 3, MTU: 5}
		b, err := json.Marshal(e)
		if err != nil || !strings.Contains(string(b), `"GID":"`+text+`"`) {
			t.Errorf("endpoint in JSON: got %s with error %v, want it to contain GID %s", b, err, text)
		}
		var back Endpoint
		if err := json.Unmarshal(b, &back); err != nil || back != e {
			t.Errorf("got %+v, %v, want %+v", back, err, e)
		}
	}
	var g GID
	if err := g.UnmarshalText([]byte("fe80")); err == nil {
		t.Error("UnmarshalText of a GID that is not an address: got nil, want an error")
	}
}

// TestCallsShareObjectUse checks that calls on an object do not wait for each other. The end of the object must wait
// for the calls, and no call may begin after the end.
func TestCallsShareObjectUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l useCount
		d := &Device{}
		hang, ended := make(chan struct{}), false
		go l.callWhileOpen(func() error { <-hang; return nil })
		synctest.Wait()
		if err := l.callWhileOpen(func() error { return nil }); err != nil {
			t.Errorf("use during another blocked call: got %v, want nil", err)
		}
		go l.closeOnce(d, func() error { ended = true; return nil })
		synctest.Wait()
		if ended {
			t.Error("end during a call: returned, want it to wait")
		}
		close(hang)
		synctest.Wait()
		if !ended {
			t.Error("end without a call: still blocked, want it to return")
		}
		if err := l.callWhileOpen(func() error { return nil }); err != ErrClosed {
			t.Errorf("use after the end: got %v, want %v", err, ErrClosed)
		}
	})
}
