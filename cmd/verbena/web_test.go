package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"verbena/internal/ctl"
)

// fakeService answers every request at a socket with success until the test ends. It returns the requests.
func fakeService(t *testing.T) (socket string, requests <-chan *ctl.Request) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	asked := make(chan *ctl.Request, 16)
	go func() {
		for {
			uc, err := l.AcceptUnix()
			if err != nil {
				return
			}
			go func() {
				defer uc.Close()
				for c := (ctl.Conn{UnixConn: uc}); ; {
					r := &ctl.Request{}
					if _, err := c.Receive(r, ctl.MessageLimits{Size: ctl.MaxRequest}); err != nil {
						return
					}
					if r.Op != ctl.OpInfo {
						asked <- r
					}
					if c.Send(&ctl.Response{Info: &ctl.ServiceInfo{}, ID: 1}, nil) != nil {
						return
					}
				}
			}()
		}
	}()
	return socket, asked
}

// TestCommandsOfWebPage tests that the commands that the web page shows send the requests that the page sends.
func TestCommandsOfWebPage(t *testing.T) {
	b, err := os.ReadFile("../../service/web/testdata/commands.txt")
	if err != nil {
		t.Fatal(err)
	}
	socket, requests := fakeService(t)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		out, err := exec.Command("sh", "-c", `printf "%s\\n" `+lines[i]).Output()
		if err != nil {
			t.Fatal(err)
		}
		words := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
		c := cli{}
		k, err := newParser(&c).Parse(append([]string{"--socket", socket}, words[1:]...))
		if err == nil {
			err = k.Run(&c)
		}
		if err != nil {
			t.Errorf("%s: got %v, want success", lines[i], err)
			continue
		}
		got := <-requests
		got.Protocol, got.Build = 0, ""
		if js, err := json.Marshal(got); err != nil || string(js) != lines[i+1] {
			t.Errorf("%s: got the request %s and error %v, want %s", lines[i], js, err, lines[i+1])
		}
	}
}

// TestEmptyAddressIsRefused tests that an empty address of a page or of metrics is an error that shows the form of an
// address.
func TestEmptyAddressIsRefused(t *testing.T) {
	v := commandsForSocket(t, filepath.Join(t.TempDir(), "sock"))
	for flag, want := range map[string]string{"--web": "127.0.0.1:9402", "--metrics": "127.0.0.1:9401"} {
		out, err := v("serve", "--link", "rxe0=127.91.11.7", flag, "").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "write HOST:PORT, such as "+want) {
			t.Errorf("serve %s with an empty address: got %s and error %v, want the form of an address", flag, out, err)
		}
	}
}

// TestWebPageOfDaemon tests that `serve --daemon --web` prints the address of the page, that the page changes the
// service, and that it needs the token.
func TestWebPageOfDaemon(t *testing.T) {
	v := commandsForSocket(t, filepath.Join(t.TempDir(), "sock"))
	out := mustRun(t, v("serve", "--daemon", "--link", "rxe0=127.91.11.6", "--web", "127.0.0.1:0"))
	_, url, _ := strings.Cut(strings.TrimSpace(out), "web page: ")
	get := func(url string) (status int, text string) {
		r, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(b)
	}
	if status, text := get(url); status != 200 || !strings.Contains(text, "<title>verbena</title>") {
		t.Errorf("page at %q: got status %d and %d bytes, want the page", url, status, len(text))
	}
	base := url[:strings.Index(url[len("http://"):], "/")+len("http://")]
	if status, text := get(base + "/"); status != 403 || strings.Contains(text, "<") {
		t.Errorf("page without the token: got status %d and %q, want 403", status, text)
	}
	r, err := http.NewRequest("POST", url+"do",
		strings.NewReader(`{"action":"link","args":{"name":"rxe0","state":"down"}}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Origin", base)
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	a.Body.Close()
	if out := mustRun(t, v("link", "show")); a.StatusCode != 200 || !strings.Contains(out, "link: down") {
		t.Errorf("link down on the page: got status %d and\n%s, want a link that is down", a.StatusCode, out)
	}
	mustRun(t, v("stop"))
	if _, err := http.Get(url); err == nil {
		t.Error("page after the end of the service: got an answer, want an error")
	}
	http.DefaultClient.CloseIdleConnections()
}
