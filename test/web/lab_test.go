package web

import (
	"bytes"
	"context"
	"errors"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"verbena/internal/ctl"
	"verbena/internal/fault"
	server "verbena/service"
	"verbena/service/servicetest"
	"verbena/service/web"
	"verbena/verbs"
	client "verbena/verbs/service"
)

// lab is a service with two devices and a web page.
type lab struct {
	t    *testing.T
	svc  *server.Service
	url  string
	devs [2]*verbs.Device
}

// newLab starts a service with the devices rxe0 and rxe1. All ends with the test.
func newLab(t *testing.T, addrs [2]string, o web.Options) *lab {
	t.Helper()
	svc, loc := servicetest.New(t, server.Options{Wire: true, Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: addrs[:1]},
		{Name: "rxe1", Addrs: addrs[1:]}}})
	l := &lab{t: t, svc: svc}
	o.Source, o.Version = svc, "verbena test"
	o.Causes = web.CausesOf(svc)
	listener, err := web.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- web.Serve(listener, o) }()
	t.Cleanup(func() {
		listener.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	l.url = listener.URL()
	programs, err := client.At(loc.Socket)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"rxe0", "rxe1"} {
		if l.devs[i], err = programs.Open(name); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.devs[i].Close() })
	}
	return l
}

// end is one end of a connection.
type end struct {
	cq *verbs.CQ
	mr *verbs.MR
	qp *verbs.QP
}

// connection is the two ends of a connection.
type connection [2]end

// connect makes a connection between the devices. Its retransmissions end after retries timeouts.
func (l *lab) connect(retries int) (ends connection) {
	l.t.Helper()
	for i, dev := range l.devs {
		pd, err := dev.AllocPD()
		var cq *verbs.CQ
		if err == nil {
			cq, err = dev.CreateCQ(16, nil)
		}
		var mr *verbs.MR
		if err == nil {
			mr, err = pd.Alloc(4096, verbs.LocalWrite)
		}
		var qp *verbs.QP
		if err == nil {
			qp, err = pd.CreateQP(verbs.QPInit{SendCQ: cq})
		}
		if err != nil {
			l.t.Fatal(err)
		}
		ends[i] = end{cq, mr, qp}
	}
	path := verbs.Path{Retries: retries, Timeout: 4 * time.Millisecond}
	for i, e := range ends {
		peer, err := ends[1-i].qp.LocalVia(path)
		if err == nil {
			err = e.qp.ConnectVia(peer, path)
		}
		if err != nil {
			l.t.Fatal(err)
		}
	}
	return ends
}

// exchange sends a message from one end to the other.
func (ends *connection) exchange(size int) error {
	if err := ends[1].qp.PostRecv(&verbs.RecvWR{Local: ends[1].mr.SGE(0, size)}); err != nil {
		return err
	}
	if err := ends[0].qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.Signaled,
		Local: ends[0].mr.SGE(0, size)}); err != nil {
		return err
	}
	var wc [1]verbs.WC
	for _, e := range []end{ends[0], ends[1]} {
		for deadline := time.Now().Add(20 * time.Second); ; {
			n, err := e.cq.Poll(wc[:])
			if err != nil {
				return err
			}
			if n == 1 {
				break
			}
			if time.Now().After(deadline) {
				return errors.New("got no completion")
			}
			time.Sleep(time.Millisecond)
		}
		if err := verbs.CompletionError(&wc[0]); err != nil {
			return err
		}
	}
	return nil
}

// keepBusy sends messages on a connection until the test ends or a message fails.
func (l *lab) keepBusy(ends connection, size int, pause time.Duration) {
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(l.t.Context())
	wg.Go(func() {
		for ctx.Err() == nil && ends.exchange(size) == nil {
			time.Sleep(pause)
		}
	})
	l.t.Cleanup(func() { stop(); wg.Wait() })
}

func (l *lab) addFault(r ctl.FaultRule) {
	l.t.Helper()
	if _, err := l.svc.Do(&ctl.Request{Op: ctl.OpFaultAdd, Fault: &r}); err != nil {
		l.t.Fatal(err)
	}
}

// lose makes rxe0 drop a share of the packets of a queue pair.
func (l *lab) lose(qp uint32, share fault.Share) {
	l.addFault(ctl.FaultRule{Dev: "rxe0", Rule: fault.Rule{QP: qp, Drop: share, Seed: 7}})
}

// browser is a tab of headless Chromium.
type browser struct {
	t   *testing.T
	ctx context.Context
}

// chromium is the browser of all tests. The first test starts it.
var chromium struct {
	ctx   context.Context
	close context.CancelFunc
}

func TestMain(m *testing.M) {
	code := m.Run()
	if chromium.close != nil {
		chromium.close()
	}
	os.Exit(code)
}

// newBrowser opens a tab of Chromium. It fails the test in CI if Chromium is missing, and skips the test elsewhere.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium-headless-shell", "chromium"} {
		if p, err := exec.LookPath(name); err == nil {
			path = p
			break
		}
	}
	if path == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal("missing: apt-get install chromium-headless-shell")
		}
		t.Skip("missing: apt-get install chromium-headless-shell")
	}
	if chromium.close == nil {
		opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
			chromedp.Flag("font-render-hinting", "none"))
		allocator, end := chromedp.NewExecAllocator(context.Background(), opts...)
		ctx, cancel := chromedp.NewContext(allocator)
		chromium.ctx, chromium.close = ctx, func() { cancel(); end() }
		if err := chromedp.Do(ctx); err != nil { // starts the browser
			t.Fatal(err)
		}
	}
	ctx, cancel := chromedp.NewContext(chromium.ctx)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 90*time.Second)
	t.Cleanup(cancel)
	b := &browser{t, ctx}
	b.do(chromedp.EmulateViewport(1360, 900))
	return b
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// eval returns the value of an expression.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// await waits until an expression is true. An expression with an exception is false.
func (b *browser) await(expression string) {
	b.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if eval[bool](b, "(() => { try { return !!("+expression+"); } catch { return false; } })()") {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("the page after 20 s: got\n%s\nwant %s", eval[string](b, "document.body.innerText"), expression)
		}
	}
}

// click clicks the first visible button with a text, in the details if they have one.
func (b *browser) click(text string) {
	b.t.Helper()
	b.await(button(text))
	eval[chromedp.Void](b, button(text)+".click()")
}

func button(text string) string {
	return `[...document.querySelectorAll("#detail button"), ...document.querySelectorAll("button")].find(b => b.offsetParent && !b.disabled && b.textContent.includes(` + "`" + text + "`" + `))`
}

// show opens an address.
func (b *browser) show(url string) {
	b.t.Helper()
	b.do(chromedp.Navigate(url))
}

// setForm selects the light or dark form, and the width, of the page.
func (b *browser) setForm(scheme string, width, height int64, mobile bool) {
	b.t.Helper()
	scale := 1.0
	if mobile {
		scale = 2
	}
	b.do(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		if _, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}); err != nil {
			return err
		}
		_, err := cdp.Call(ctx, t, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
			Width: width, Height: height, DeviceScaleFactor: scale, Mobile: mobile})
		return err
	}))
}

// shoot saves a screenshot in the folder SCREENSHOTS, if that is set. docs/web.md has some of them.
func (b *browser) shoot(name string) {
	b.t.Helper()
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		return
	}
	picture, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err == nil {
		picture, err = shrink(picture)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// shrink encodes a picture with its 128 most frequent colours, for a small file.
func shrink(b []byte) ([]byte, error) {
	full, err := png.Decode(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	uses := map[color.Color]int{}
	area := full.Bounds()
	for y := range area.Dy() {
		for x := range area.Dx() {
			uses[full.At(x, y)]++
		}
	}
	colours := slices.SortedFunc(maps.Keys(uses), func(a, b color.Color) int { return uses[b] - uses[a] })
	small := image.NewPaletted(area, colours[:min(len(colours), 128)])
	draw.Draw(small, area, full, image.Point{}, draw.Src)
	var out bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, small)
	return out.Bytes(), err
}
