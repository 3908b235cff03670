package web

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"verbena/internal/ctl"
	"verbena/internal/fault"
	"verbena/service/web"
	"verbena/verbs"
)

// waitInService waits until a condition of the service holds.
func waitInService(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: got none within 20 s, want one", what)
		}
	}
}

func (l *lab) linkOf(name string) (info ctl.LinkInfo) {
	links, err := l.svc.Links()
	if err != nil {
		l.t.Fatal(err)
	}
	return links[slices.IndexFunc(links, func(i ctl.LinkInfo) bool { return i.Name == name })]
}

// rules returns the texts of the active rules.
func (l *lab) rules() (list []string) {
	r, err := l.svc.Do(&ctl.Request{Op: ctl.OpFaultShow})
	if err != nil {
		l.t.Fatal(err)
	}
	for _, f := range r.Faults {
		list = append(list, f.Rule.String())
	}
	return list
}

// openDevice opens the details of a device by a click on the picture.
func (b *browser) openDevice(name string) {
	b.t.Helper()
	node := fmt.Sprintf(`[...document.querySelectorAll("#picture .node")].find(n => n.textContent.includes(%q))`, name)
	b.await(node)
	eval[chromedp.Void](b, node+`.dispatchEvent(new MouseEvent("click", {bubbles: true}))`)
	b.await(fmt.Sprintf(`document.querySelector("#detail-title")?.textContent === %q`, name))
}

// runDialog waits for the command in the dialog, compares it, and executes it with the Enter key.
func (b *browser) runDialog(command string) {
	b.t.Helper()
	b.await(fmt.Sprintf(`document.querySelector("#dialog output")?.textContent === %q`, command))
	b.await(`!document.querySelector("#dialog button.main").disabled`)
	eval[chromedp.Void](b, `document.querySelector("#dialog button.main").focus()`)
	b.do(chromedp.KeyEvent("\r"))
	b.await(`!document.querySelector("#dialog").open`)
	b.await(fmt.Sprintf(`document.querySelector("#log li code")?.textContent === %q`, command))
}

func (b *browser) setInput(label, value string) {
	b.t.Helper()
	eval[chromedp.Void](b, fmt.Sprintf(`(() => {
		const field = [...document.querySelectorAll("#dialog label")].find(l => l.firstChild.textContent === %q);
		const details = field.closest("details"); if (details) details.open = true;
		const input = field.querySelector("input, select");
		input.value = %q; input.dispatchEvent(new Event("input", {bubbles: true}));
	})()`, label, value))
}

// TestTasks does what a reader without the command line wants to do, by mouse and keyboard.
func TestTasks(t *testing.T) {
	l := newLab(t, [2]string{"127.91.21.1", "127.91.21.2"}, web.Options{})
	healthy := l.connect(7)
	l.keepBusy(healthy, 4096, 20*time.Millisecond)
	lossy := l.connect(7)
	l.lose(lossy[0].qp.Num(), 0.2)
	l.keepBusy(lossy, 4096, 10*time.Millisecond)
	dead := l.connect(2)
	l.lose(dead[0].qp.Num(), 1)
	if err := dead.exchange(64); err == nil {
		t.Fatal("message without packets: got success, want an error")
	}
	b := newBrowser(t)
	b.show(l.url)

	// Which connection retransmits, and why has one failed?
	attention := func(qp *verbs.QP, text string) string {
		return fmt.Sprintf(`[...document.querySelectorAll("#attention li")].find(li => li.textContent.includes("QP %d on rxe0") && li.textContent.includes(%q))`,
			qp.Num(), text)
	}
	b.await(attention(lossy[0].qp, "retransmits"))
	b.await(attention(dead[0].qp, "transport retry counter exceeded"))
	b.await(`document.querySelector("#causes li").textContent.includes("transport retry counter exceeded")`)
	b.await(`document.querySelector("#picture .edge text").textContent.includes("3 connections")`)
	for _, scheme := range []string{"light", "dark"} {
		b.setForm(scheme, 1360, 900, false)
		b.shoot("web-" + scheme)
	}

	// Which messages were lost?
	eval[chromedp.Void](b, attention(lossy[0].qp, "")+`.querySelector("button").click()`)
	b.await(`[...document.querySelectorAll("#detail .sequence .msg.bad")].some(m => m.textContent.includes("lost"))`)
	b.await(`[...document.querySelectorAll("#detail .sequence .msg.ack")].length > 0`)
	b.setForm("light", 1360, 900, false)
	eval[chromedp.Void](b, `document.querySelector("#detail .sequence").scrollIntoView()`)
	b.shoot("web-sequence")
	b.setForm("light", 390, 844, true)
	b.await(`document.documentElement.scrollWidth <= 390`)
	waitInService(t, "traces of both ends", func() bool { return l.traced() == 2 })

	// Which queue pair is its peer?
	b.click("Show its peer")
	b.await(fmt.Sprintf(`document.querySelector("#detail-title").textContent === "QP %d on rxe1"`, lossy[1].qp.Num()))
	eval[chromedp.Void](b, `document.dispatchEvent(new KeyboardEvent("keydown", {key: "Escape", bubbles: true}))`)
	b.await(`document.querySelector("#detail").hidden`)
	waitInService(t, "end of the traces", func() bool { return l.traced() == 0 })
	b.await(`document.documentElement.scrollWidth <= 390`)
	b.shoot("web-phone")
	b.setForm("dark", 1360, 900, false)

	// Find the queue pairs of a program, by keyboard.
	eval[chromedp.Void](b, `document.activeElement.blur()`)
	eval[chromedp.Void](b, `document.dispatchEvent(new KeyboardEvent("keydown", {key: "/", bubbles: true}))`)
	b.do(chromedp.KeyEvent(fmt.Sprint(healthy[1].qp.Num())))
	b.await(`document.querySelectorAll("#queuepairs tbody tr").length === 2`)
	eval[chromedp.Void](b, `(() => { const f = document.querySelector("#filter"); f.value = ""; f.dispatchEvent(new Event("input")); f.blur(); })()`)

	// Take rxe1 down and up.
	b.openDevice("rxe1")
	b.click("Take the link down")
	b.runDialog("verbena link set rxe1 down")
	waitInService(t, "rxe1 that is down", func() bool { return l.linkOf("rxe1").Link == ctl.LinkDown })
	b.await(`document.querySelector("#attention").innerText.includes("rxe1: link down")`)
	b.click("Take the link up")
	b.runDialog("verbena link set rxe1 up")
	waitInService(t, "rxe1 that is up", func() bool { return l.linkOf("rxe1").Link == ctl.LinkUp })

	// Limit the rate.
	b.click("Limit, delay or lose")
	b.setInput("rate", "1Gbit")
	b.runDialog("verbena link set rxe1 --rate=1Gbit")
	waitInService(t, "rate of rxe1", func() bool { s := l.linkOf("rxe1").Shape; return s != nil && s.Rate == 1e9 })

	// Disturb packets: a value that is wrong, then one that is right; and end it.
	b.click("Disturb packets")
	b.setInput("drop", "200%")
	b.await(`document.querySelector("#dialog .error").textContent.includes("200%") && document.querySelector("#dialog button.main").disabled`)
	b.setInput("drop", "3%")
	b.runDialog("verbena fault add --dev=rxe1 --drop=3%")
	waitInService(t, "rule", func() bool { return slices.Contains(l.rules(), "drop 0.03") })
	b.await(`[...document.querySelectorAll("#rules li")].some(li => li.textContent.includes("drop 0.03"))`)
	eval[chromedp.Void](b, `[...document.querySelectorAll("#rules li")].find(li => li.textContent.includes("drop 0.03")).querySelector("button").click()`)
	b.runDialog("verbena fault clear 3")
	waitInService(t, "end of the rule", func() bool { return !slices.Contains(l.rules(), "drop 0.03") })

	// Make a verb fail.
	b.click("Fail a verb")
	b.setInput("verb", "create_cq")
	b.runDialog("verbena fault add --verb=create_cq --errno=ENOMEM")
	if _, err := l.devs[0].CreateCQ(16, nil); err == nil {
		t.Error("create_cq with a rule: got success, want ENOMEM")
	}

	// Reset rxe0.
	b.openDevice("rxe0")
	b.click("Reset")
	b.runDialog("verbena dev reset rxe0")
	b.await(`[...document.querySelectorAll("#detail dt")].find(d => d.textContent === "Resets")?.nextSibling.textContent === "1"`)
	b.await(`document.querySelectorAll("#log li").length === 7`)
}

// traced returns the number of traced queue pairs.
func (l *lab) traced() (n int) {
	r, err := l.svc.Do(&ctl.Request{Op: ctl.OpQPShow})
	if err != nil {
		l.t.Fatal(err)
	}
	for _, q := range r.QPs {
		if q.Traced {
			n++
		}
	}
	return n
}

// TestHostileNamesStayText tests that names from programs and rules are text on the page: no script runs, and no
// element appears.
func TestHostileNamesStayText(t *testing.T) {
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	setName := func(name string) {
		if err := os.WriteFile("/proc/self/comm", []byte(name), 0); err != nil {
			t.Fatal(err)
		}
	}
	setName("<img src=x o=>")
	defer setName(strings.TrimSpace(string(comm)))
	const attack = `<img src=x onerror="document.title=1"><script>document.title=1</script>`
	l := newLab(t, [2]string{"127.91.22.1", "127.91.22.2"}, web.Options{})
	l.connect(7)
	l.addFault(ctl.FaultRule{Verb: &fault.VerbRule{Verb: "create_cq", Errno: "ENOMEM", Process: attack[:64], Nth: 9}})
	b := newBrowser(t)
	b.show(l.url)
	b.await(`document.querySelectorAll("#queuepairs tbody tr").length === 2`)
	b.await(`document.querySelector("#programs").innerText.includes("<img src=x o=>")`)
	b.await(`document.querySelector("#rules").innerText.includes("<img src=x onerror=")`)
	eval[chromedp.Void](b, `document.querySelector("#queuepairs tbody tr").click()`)
	b.await(`document.querySelector("#detail").innerText.includes("<img src=x o=>")`)
	if got := eval[string](b, `document.title`); got != "verbena" {
		t.Errorf("title: got %q, want no script that changes it", got)
	}
	if n := eval[int](b, `document.querySelectorAll("img, script:not([src='app.js']), iframe, object").length`); n != 0 {
		t.Errorf("elements from names: got %d, want 0", n)
	}
	// The policy also stops a script that had become part of the page.
	eval[chromedp.Void](b, `(() => { const s = document.createElement("script"); try { s.textContent = "document.title = 'changed'"; } catch {} document.body.append(s); })()`)
	if got := eval[string](b, `document.title`); got != "verbena" {
		t.Errorf("title after an inline script: got %q, want a policy that stops it", got)
	}
}

// TestThousandQueuePairs tests the page with 1,000 queue pairs, and logs the time of a refresh.
func TestThousandQueuePairs(t *testing.T) {
	l := newLab(t, [2]string{"127.91.23.1", "127.91.23.2"}, web.Options{})
	for i := range 2 {
		pd, err := l.devs[i].AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		cq, err := l.devs[i].CreateCQ(16, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 500 {
			if _, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, SendWRs: 1, RecvWRs: 1}); err != nil {
				t.Fatal(err)
			}
		}
	}
	b := newBrowser(t)
	b.show(l.url)
	b.await(`document.querySelector("#all")?.textContent === "Show all 1000"`)
	if n := eval[int](b, `document.querySelectorAll("#queuepairs tbody tr").length`); n != 100 {
		t.Errorf("rows: got %d, want the first 100", n)
	}
	const refresh = `Number(document.documentElement.dataset.refreshMs)`
	first := eval[float64](b, refresh)
	b.click("Show all 1000")
	b.await(`document.querySelectorAll("#queuepairs tbody tr").length === 1000`)
	var times []float64
	for range 4 {
		last := eval[float64](b, refresh)
		b.await(fmt.Sprintf(`%s !== %v`, refresh, last))
		times = append(times, eval[float64](b, refresh))
	}
	began := time.Now()
	for _, op := range []ctl.Op{ctl.OpDevShow, ctl.OpLinkShow, ctl.OpStatShow, ctl.OpResShow, ctl.OpQPShow,
		ctl.OpFaultShow} {
		if _, err := l.svc.Do(&ctl.Request{Op: op}); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("a refresh in the browser: %.1f ms with 100 of 1,000 rows, %v ms with all; the answers of the service: %v",
		first, times, time.Since(began))
}
