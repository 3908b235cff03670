package service_test

import (
	"errors"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"verbena/driver"
	"verbena/driver/efa"
	"verbena/driver/rxe"
	"verbena/internal/ctl"
	"verbena/service"
	"verbena/service/servicetest"
)

// TestParseLinkSpecWithPCI tests descriptions of devices with a PCI function.
func TestParseLinkSpecWithPCI(t *testing.T) {
	for text, want := range map[string]string{
		"rxe0=127.0.0.1": "", "rxe0=127.0.0.1,pci": "auto", "rxe0=127.0.0.1,::1,pci,numa=1": "auto,numa=1",
		"rxe0=eth0,pci=81:00.0,numa=1": "81:00.0,numa=1", "rxe0=,pci": "auto",
	} {
		l, err := service.ParseLinkSpec(text, []driver.Driver{&rxe.Driver{}})
		if err != nil || l.PCI != want || strings.Contains(l.Netdev+strings.Join(l.Addrs, ""), "pci") {
			t.Errorf("%s: got %+v and error %v, want PCI %q", text, l, err, want)
		}
	}
	for _, text := range []string{"rxe0=eth0,pcix", "rxe0=eth0,pci=x", "rxe0=eth0,pci,numa=x", "rxe0=eth0,pci,pci"} {
		if _, err := service.ParseLinkSpec(text, []driver.Driver{&rxe.Driver{}}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: got %v, want EINVAL", text, err)
		}
	}
}

// TestParsePersonality tests the choice of a driver by an option, and the names that it permits.
func TestParsePersonality(t *testing.T) {
	drivers := []driver.Driver{&rxe.Driver{}, &efa.Driver{}}
	for text, want := range map[string]ctl.LinkSpec{
		"efa0=127.0.0.1":                                  {Name: "efa0"},
		"efa0=127.0.0.1,personality=efa":                  {Name: "efa0", Personality: "efa"},
		"rdmap0s6=127.0.0.1,personality=efa,pci,numa=1":   {Name: "rdmap0s6", Personality: "efa", PCI: "auto,numa=1"},
		"rdmap0s6=127.0.0.1,pci,numa=1,personality=efa":   {Name: "rdmap0s6", Personality: "efa", PCI: "auto,numa=1"},
		"rxe0=127.0.0.1,personality=rxe":                  {Name: "rxe0", Personality: "rxe"},
		"rxe0=127.0.0.1,personality=efa":                  {}, // looks like a device of rxe
		"x0=127.0.0.1,personality=rxe":                    {}, // libibverbs would not find the provider
		"x0=127.0.0.1":                                    {},
		"x0=127.0.0.1,personality=mlx5":                   {},
		"x/0=127.0.0.1,personality=efa":                   {},
		"efa0=127.0.0.1,personality=efa,personality=efa,": {},
	} {
		l, err := service.ParseLinkSpec(text, drivers)
		if want.Name == "" {
			if err == nil {
				t.Errorf("%s: got %+v, want an error", text, l)
			}
			continue
		}
		want.Addrs = []string{"127.0.0.1"}
		if err != nil || !reflect.DeepEqual(l, want) {
			t.Errorf("%s: got %+v and error %v, want %+v", text, l, err, want)
		}
	}
}

// TestEFALooksLikePCI tests the identifiers of an EFA device, and that a link can change each.
func TestEFALooksLikePCI(t *testing.T) {
	s, _ := servicetest.New(t, service.Options{Drivers: []driver.Driver{&efa.Driver{}}, Links: []ctl.LinkSpec{
		{Name: "efa0", Addrs: []string{"127.91.9.3"}},
		{Name: "x1", Addrs: []string{"127.91.9.4"}, Personality: "efa", PCI: "auto,device=efa1,numa=0"},
	}})
	links, err := s.Links()
	if err != nil || len(links) != 2 {
		t.Fatalf("Links: got %v and error %v, want two", links, err)
	}
	for i, want := range []string{"numa=-1,vendor=0x1d0f,device=0xefa2", "numa=0,vendor=0x1d0f,device=0xefa1"} {
		if !strings.Contains(links[i].PCI, want) || !strings.Contains(links[i].PCI, "driver=efa") {
			t.Errorf("link %s: got %s, want %s and driver=efa", links[i].Name, links[i].PCI, want)
		}
	}
}

// TestAutomaticPCIAddressIsFree tests that an automatic address is not one that a later link names.
func TestAutomaticPCIAddressIsFree(t *testing.T) {
	first, _ := servicetest.New(t, service.Options{Links: []ctl.LinkSpec{
		{Name: "rxe0", Addrs: []string{"127.91.9.5"}, PCI: "auto"},
	}})
	links, err := first.Links()
	if err != nil {
		t.Fatal(err)
	}
	taken, _, _ := strings.Cut(links[0].PCI, ",")
	s, _ := servicetest.New(t, service.Options{Links: []ctl.LinkSpec{
		{Name: "rxe0", Addrs: []string{"127.91.9.6"}, PCI: "auto"},
		{Name: "rxe1", Addrs: []string{"127.91.9.7"}, PCI: taken},
	}})
	if links, err = s.Links(); err != nil || len(links) != 2 || !strings.HasPrefix(links[1].PCI, taken) ||
		strings.HasPrefix(links[0].PCI, taken) {
		t.Errorf("links: got %+v and error %v, want rxe1 at %s, and rxe0 elsewhere", links, err, taken)
	}
}

// TestPCIFunctions tests the addresses of functions: automatic addresses differ, an address in use is refused, and a
// removed or refused link releases its address.
func TestPCIFunctions(t *testing.T) {
	s, loc := servicetest.New(t, service.Options{Links: []ctl.LinkSpec{
		{Name: "rxe0", Addrs: []string{"127.91.9.1"}, PCI: "auto"},
		{Name: "rxe1", Addrs: []string{"127.91.9.2"}, PCI: "auto"},
	}})
	functions := func() map[string]string {
		t.Helper()
		links, err := s.Links()
		if err != nil {
			t.Fatal(err)
		}
		m := map[string]string{}
		for _, l := range links {
			m[l.Name], _, _ = strings.Cut(l.PCI, ",")
		}
		return m
	}
	first := functions()
	if first["rxe0"] == "" || first["rxe1"] == "" || first["rxe0"] == first["rxe1"] {
		t.Errorf("automatic addresses: got %q, want two", first)
	}
	c, err := ctl.Dial(loc)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	add := func(name, addr, shape string) error {
		_, err := c.Do(&ctl.Request{Op: ctl.OpLinkAdd, Link: &ctl.LinkSpec{Name: name, Addrs: []string{addr}, PCI: shape}})
		return err
	}
	if err := add("rxe2", "127.91.9.3", first["rxe0"]); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("address in use: got %v, want EADDRINUSE", err)
	}
	if err := add("rxe2", "127.91.9.1", "fffd:81:00.0"); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("network address in use: got %v, want EADDRINUSE", err)
	}
	if err := add("rxe2", "127.91.9.3", strings.Repeat("x", 1<<10)); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("long description: got %v, want EINVAL", err)
	}
	for range 2 {
		if err := add("rxe2", "127.91.9.3", "fffd:81:00.0"); err != nil {
			t.Errorf("free address: got %v, want success", err)
		}
		if _, err := c.Do(&ctl.Request{Op: ctl.OpLinkDel, Name: "rxe2"}); err != nil {
			t.Fatal(err)
		}
	}
}
