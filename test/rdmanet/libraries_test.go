package rdmanet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"verbena/driver/rxe"
	"verbena/ib"
	"verbena/internal/leaktest"
	"verbena/link/simnet"
	"verbena/netdev"
	"verbena/rdmanet"
	"verbena/verbs"
	"verbena/verbs/cm"
	"verbena/verbs/embed"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// maxPayload is the maximum payload of a packet.
const maxPayload = 4096

// testbed is a device, a listener on it, and a dialer.
type testbed struct {
	dev *rxe.Device
	l   net.Listener
	d   rdmanet.Dialer
}

// runWithBothSetups runs a test with connections established over TCP, and then by the connection manager. The test
// returns the number of bytes that it has transferred. The device's counters must show at least as many bytes.
func runWithBothSetups(t *testing.T, f func(*testing.T, *testbed) (payload int)) {
	t.Parallel()
	for _, x := range []struct {
		name string
		cm   bool
	}{{"TCP", false}, {"CM", true}} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			w := newTestbed(t, x.cm)
			before := w.dev.Stats()["sent_pkts"]
			payload := f(t, w)
			if n := w.dev.Stats()["sent_pkts"] - before; n*maxPayload < uint64(payload) {
				t.Errorf("packets of the device: got %d, want enough for %d bytes", n, payload)
			}
		})
	}
}

func newTestbed(t *testing.T, useCM bool) *testbed {
	t.Helper()
	w := &testbed{}
	var err error
	w.dev, err = rxe.New(rxe.Config{
		Name: "rxe0", Netdev: netdev.Interface{Name: "lo", Index: 1, MTU: 65536, Up: true, Running: true},
		Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Network: simnet.New(simnet.Config{}), Fabric: &rxe.Fabric{},
	})
	must(t, err)
	var core ib.Core
	must(t, core.Register(w.dev.Handle()))
	stack, err := embed.New(&core)
	must(t, err)
	t.Cleanup(func() {
		stack.Close()
		must(t, core.Unregister(w.dev.Handle()))
		w.dev.Close()
	})
	cfg := rdmanet.Config{Host: &rdmanet.Host{
		Devices: func() ([]verbs.DeviceInfo, error) { return stack.Devices(), nil },
		Manager: func() (*cm.Manager, error) { return stack.ConnectionManager(nil) },
	}}
	lc := rdmanet.ListenConfig{Config: cfg, CM: useCM, Failed: func(a net.Addr, err error) {
		t.Errorf("connection set-up with %v: got %v, want success", a, err)
	}}
	w.l, err = lc.Listen(context.Background(), "rdma", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { must(t, w.l.Close()) })
	w.d = rdmanet.Dialer{Config: cfg, CM: useCM}
	return w
}

// randomBytes returns n bytes that depend on the seed.
func randomBytes(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(b)
	return b
}

// TestHTTP tests HTTP/1.1 and HTTP/2 with and without TLS, with many concurrent requests.
func TestHTTP(t *testing.T) {
	for _, x := range []struct {
		name     string
		tls, two bool
	}{{"1", false, false}, {"2 unencrypted", false, true}, {"1 TLS", true, false}, {"2 TLS", true, true}} {
		t.Run(x.name, func(t *testing.T) {
			runWithBothSetups(t, func(t *testing.T, w *testbed) int {
				srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Version", r.Proto)
					b, _ := io.ReadAll(r.Body)
					_, _ = w.Write(b)
				}))
				_ = srv.Listener.Close()
				srv.Listener = w.l
				var protocols http.Protocols
				protocols.SetHTTP1(!x.two)
				protocols.SetHTTP2(x.two && x.tls)
				protocols.SetUnencryptedHTTP2(x.two && !x.tls)
				srv.Config.Protocols = &protocols
				srv.EnableHTTP2 = x.two
				if x.tls {
					srv.StartTLS()
				} else {
					srv.Start()
				}
				defer srv.Close()
				client := srv.Client()
				transport := client.Transport.(*http.Transport)
				transport.DialContext = w.d.DialContext
				transport.Protocols = &protocols
				defer client.CloseIdleConnections()
				const clients, requests, size = 4, 4, 200_000
				var wg sync.WaitGroup
				for i := range clients {
					wg.Go(func() {
						for j := range requests {
							want := randomBytes(uint64(10*i+j), size)
							resp, err := client.Post(srv.URL, "application/octet-stream", bytes.NewReader(want))
							if err != nil {
								t.Error(err)
								return
							}
							got, err := io.ReadAll(resp.Body)
							resp.Body.Close()
							if err != nil || !bytes.Equal(got, want) {
								t.Errorf("response: got %d bytes and error %v, want %d", len(got), err, len(want))
							}
							if two := resp.Header.Get("Version") == "HTTP/2.0"; two != x.two {
								t.Errorf("HTTP version: got %s, want the other one", resp.Header.Get("Version"))
							}
						}
					})
				}
				wg.Wait()
				return 2 * clients * requests * size
			})
		})
	}
}

// grpcServer implements the service of gRPC's own interoperability tests.
type grpcServer struct {
	pb.UnimplementedTestServiceServer
}

func (grpcServer) UnaryCall(ctx context.Context, r *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	if r.ResponseSize < 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &pb.SimpleResponse{Payload: r.Payload}, nil
}

func (grpcServer) FullDuplexCall(s grpc.BidiStreamingServer[pb.StreamingOutputCallRequest,
	pb.StreamingOutputCallResponse]) error {
	for {
		r, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = s.Send(&pb.StreamingOutputCallResponse{Payload: r.Payload})
		}
		if err != nil {
			return err
		}
	}
}

// TestGRPC tests calls, streams, deadlines, and the graceful stop of the server.
func TestGRPC(t *testing.T) {
	runWithBothSetups(t, func(t *testing.T, w *testbed) int {
		srv := grpc.NewServer()
		pb.RegisterTestServiceServer(srv, grpcServer{})
		var served sync.WaitGroup
		served.Go(func() {
			if err := srv.Serve(w.l); err != nil {
				t.Errorf("Serve: got %v, want success", err)
			}
		})
		defer served.Wait()
		conn, err := grpc.NewClient("passthrough:///"+w.l.Addr().String(),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
				return w.d.DialContext(ctx, "rdma", addr)
			}))
		must(t, err)
		client := pb.NewTestServiceClient(conn)
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		const size, calls = 1 << 20, 4
		want := randomBytes(1, size)
		for range calls {
			got, err := client.UnaryCall(ctx, &pb.SimpleRequest{Payload: &pb.Payload{Body: want}})
			if err != nil || !bytes.Equal(got.Payload.Body, want) {
				t.Fatalf("UnaryCall: got error %v or wrong bytes, want success", err)
			}
		}
		var wg sync.WaitGroup
		for range calls {
			wg.Go(func() {
				s, err := client.FullDuplexCall(ctx)
				for range 10 {
					if err == nil {
						err = s.Send(&pb.StreamingOutputCallRequest{Payload: &pb.Payload{Body: want[:size/10]}})
					}
					if err != nil {
						break
					}
					var got *pb.StreamingOutputCallResponse
					if got, err = s.Recv(); err == nil && !bytes.Equal(got.Payload.Body, want[:size/10]) {
						t.Error("FullDuplexCall: got wrong bytes, want the sent bytes")
					}
				}
				if err == nil {
					err = s.CloseSend()
				}
				if err == nil {
					if _, err = s.Recv(); err == io.EOF {
						err = nil
					}
				}
				if err != nil {
					t.Errorf("FullDuplexCall: got %v, want success", err)
				}
			})
		}
		wg.Wait()
		brief, stop := context.WithTimeout(ctx, 10*time.Millisecond)
		defer stop()
		if _, err := client.UnaryCall(brief, &pb.SimpleRequest{ResponseSize: -1}); status.Code(
			err) != codes.DeadlineExceeded {
			t.Errorf("UnaryCall: got %v, want DeadlineExceeded", err)
		}
		must(t, conn.Close())
		srv.GracefulStop()
		return 2 * 2 * calls * (size - 10)
	})
}

// TestYamux tests a multiplexer with many streams over one connection.
func TestYamux(t *testing.T) {
	runWithBothSetups(t, func(t *testing.T, w *testbed) int {
		cfg := yamux.DefaultConfig()
		cfg.LogOutput = io.Discard
		const streams, size = 8, 300_000
		var served sync.WaitGroup
		served.Go(func() {
			nc, err := w.l.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			s, err := yamux.Server(nc, cfg)
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			for {
				x, err := s.AcceptStream()
				if err != nil {
					// The client has closed the connection. This end may still have a frame to send, which is not
					// needed any more.
					if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.EPIPE) {
						t.Errorf("AcceptStream: got %v, want EOF or EPIPE", err)
					}
					return
				}
				served.Go(func() {
					defer x.Close()
					_, _ = io.Copy(x, x)
				})
			}
		})
		nc, err := w.d.Dial("rdma", w.l.Addr().String())
		must(t, err)
		s, err := yamux.Client(nc, cfg)
		must(t, err)
		_, err = s.Ping()
		must(t, err)
		var wg sync.WaitGroup
		for i := range streams {
			wg.Go(func() {
				x, err := s.OpenStream()
				if err != nil {
					t.Error(err)
					return
				}
				want := randomBytes(uint64(i), size)
				var writing sync.WaitGroup
				writing.Go(func() {
					if _, err := x.Write(want); err != nil {
						t.Errorf("Write: got %v, want success", err)
					}
				})
				got := make([]byte, size)
				if _, err := io.ReadFull(x, got); err != nil || !bytes.Equal(got, want) {
					t.Errorf("Read: got error %v or wrong bytes, want success", err)
				}
				writing.Wait()
				_ = x.Close()
			})
		}
		wg.Wait()
		must(t, s.Close())
		served.Wait()
		return 2 * streams * size
	})
}
