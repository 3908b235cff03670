package service_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"verbena/driver"
	"verbena/driver/rxe"
	"verbena/service"
)

// TestInvalidDeviceNamesAreRefused tests the characters of device names. A name is a file name below /dev/infiniband, a
// label of metrics and a word in tables.
func TestInvalidDeviceNamesAreRefused(t *testing.T) {
	for name, good := range map[string]bool{
		"rxe": true, "rxe0": true, "rxe_fast-1.b": true, "rxe" + strings.Repeat("x", 60): true,
		"": false, "mlx5_0": false, "xrxe0": false, "rxe" + strings.Repeat("x", 61): false, "rxe/../x": false, "rxe 0": false,
		"rxe\n0":   false,
		"rxe\x000": false, "rxe\x1b[31m": false, "rxe\xff": false, "rxeé": false, "rxe:1": false, "rxe%d": false,
		`rxe"`: false,
	} {
		_, err := service.ParseLinkSpec(name+"=127.0.0.1", []driver.Driver{&rxe.Driver{}})
		if (err == nil) != good || err != nil && !errors.Is(err, syscall.EINVAL) {
			t.Errorf("device name %q: got %v, want valid: %v", name, err, good)
		}
	}
}
