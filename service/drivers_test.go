package service

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"verbena/driver"
	"verbena/driver/rxe"
	"verbena/internal/ctl"
)

// renamedRXEDriver is the rxe driver registered under another device type.
type renamedRXEDriver struct{ rxe.Driver }

func (*renamedRXEDriver) Type() string { return "soft" }

// TestDriverIsSelectedByName tests that a service selects the driver of a device by the type at the start of the
// device's name.
func TestDriverIsSelectedByName(t *testing.T) {
	other := &renamedRXEDriver{}
	s, err := New(Options{Drivers: []driver.Driver{other, &rxe.Driver{}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if err := s.links.createLink(ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.37"}}); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"soft0", "rxe0"} {
		if l := s.links.list[i]; l.spec.Name != want {
			t.Errorf("device %d: got %s, want %s", i, l.spec.Name, want)
		}
	}
	if err := s.DevReset(ctl.DevReset{Name: "soft0"}); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		name, linkType string
		want           error
		text           string
	}{
		{"soft1", "siw", syscall.EINVAL, "there is soft, rxe"},
		{"rxe1", "soft", syscall.EINVAL, "must be soft followed by up to 59"},
		{"mlx5_0", "rxe", syscall.EINVAL, "must be rxe followed by up to 60"},
		{"soft0", "soft", syscall.EEXIST, ""},
	} {
		err := (netlinkLinks{&s.links}).AddLink(c.name, c.linkType, "lo")
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("add %s of type %s: got %v, want %v with %q", c.name, c.linkType, err, c.want, c.text)
		}
	}
	if err := s.links.createLink(ctl.LinkSpec{Name: "mlx5_0"}); !errors.Is(err, syscall.EINVAL) ||
		!strings.Contains(err.Error(), "soft or rxe") {
		t.Errorf("add mlx5_0: got %v, want EINVAL and the types", err)
	}
	if _, err := New(Options{}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a service without drivers: got %v, want EINVAL", err)
	}
}
