package main

import (
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// TestMetricsWhileReady tests that a service answers Prometheus while it is ready, and not after its end.
func TestMetricsWhileReady(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := free.Addr().String()
	v := commandsForSocket(t, filepath.Join(t.TempDir(), "sock"))
	mustFail(t, v("serve", "--daemon", "--link", "rxe0=127.91.11.5", "--metrics", addr), addr, "choose another port")
	free.Close()
	mustRun(t, v("serve", "--daemon", "--link", "rxe0=127.91.11.5", "--metrics", addr))
	get := func() (string, error) {
		r, err := http.Get("http://" + addr + "/metrics")
		if err != nil {
			return "", err
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		return string(b), err
	}
	text, err := get()
	if err != nil || !strings.Contains(text, `verbena_device_port_up{device="rxe0"} 1`) {
		t.Errorf("metrics: got %d bytes, error %v, want the state of the port", len(text), err)
	}
	mustRun(t, v("stop"))
	if _, err := get(); err == nil {
		t.Error("metrics after the end of the service: got an answer, want an error")
	}
}
