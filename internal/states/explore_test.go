package states

import (
	"errors"
	"testing"
	"time"

	"verbena/internal/explore"
)

// The model has programs that open the device, get a context, make a queue pair, post, destroy and close, as in
// package uverbs. The model also has resets. A reset takes the device to the error state, makes zombies of the
// contexts, unregisters the device, and registers the next device. Each lock of the product has a lock in the
// model. The shared state changes only by the transitions of this package.

const (
	numFiles = 2
	numLives = 3 // number of lives of the device
)

// modelFile is an open device file with at most one queue pair.
type modelFile struct {
	state    Context
	on       int8 // life of the device, or -1 if not opened
	readers  int8 // File.life
	writer   bool
	wants    int8 // number of waiting writers; no reader begins while there are any
	open     bool // File.open is held
	driver   bool // the driver has a context
	qp       Object
	made     bool // the file has a queue pair
	driverQP bool
	attached bool
	retried  bool    // GET_CONTEXT
	ends     [2]int8 // positions of the ends of the context that the device and Close have begun
}

// The following constants are the positions of an end of a context.
const (
	notBegun int8 = iota
	wantsLife
	flushes
	leaves
	lets
	isOver
)

// The following constants are the ends of a context.
const (
	byDevice = iota
	byClose
)

// The following constants are the positions of a program.
const (
	opens int8 = iota
	enters
	gets
	begins
	answers
	entersAgain
	aborts
	entersMaking
	makes
	driverMakes
	born
	posts
	entersDestroying
	ends
	driverEnds
	closes
	waitsClosed
	programOver
)

// The following constants are the positions of a reset.
const (
	fails int8 = iota
	takesFlow
	disassociates
	waitsEnds
	unregisters
	registers
	resetOver
)

type modelState struct {
	dev     [numLives]Device
	present int8 // life that programs find, or -1 for none
	next    int8 // next life to register
	told    [numLives]int8
	flow    bool           // one reset at a time changes the device (slot.Slot.flow)
	gone    [numLives]bool // uverbs.Device.gone
	wrong   int8

	files    [numFiles]modelFile
	programs [numFiles]int8
	resets   [2]deviceReset
}

type deviceReset struct {
	pc   int8
	of   int8 // life that the reset removes
	left int8 // number of remaining resets of the thread
}

var modelRules = [...]string{
	1:  "the driver is called on a removed device",
	2:  "a context is deallocated in the driver twice",
	3:  "a queue pair is destroyed twice",
	4:  "a context is made on a removed device",
	5:  "the error is reported to the driver twice",
	6:  "a queue pair is made while the context ends",
	7:  "two ends of one kind have begun",
	8:  "work is accepted on a destroyed queue pair",
	9:  "a removed device is registered, or fails",
	10: "an object is made on a device that is not active",
	11: "the driver makes a second context for a file",
}

func singleStep(what string, w modelState) []explore.ThreadStep[modelState] {
	return []explore.ThreadStep[modelState]{{What: what, To: w}}
}

func (w *modelState) recordViolation(rule int8) {
	if w.wrong == 0 {
		w.wrong = rule
	}
}

// callDriver makes a call of the driver.
func (w *modelState) callDriver(f *modelFile) {
	if w.dev[f.on] == DeviceGone {
		w.recordViolation(1)
	}
}

// deallocContext deallocates the context in the driver, if the driver has it.
func (w *modelState) deallocContext(f *modelFile) {
	if !f.driver {
		return
	}
	w.callDriver(f)
	f.driver = false
}

// destroyQP destroys a queue pair in the driver.
func (w *modelState) destroyQP(f *modelFile) {
	w.callDriver(f)
	if !f.driverQP {
		w.recordViolation(3)
	}
	f.driverQP = false
	f.qp, _ = f.qp.FinishDestroy()
}

// tryEnterFile models File.enter. It returns false if the thread has to wait.
func (f *modelFile) tryEnterFile() bool {
	if f.writer || f.wants > 0 {
		return false
	}
	f.readers++
	return true
}

func (w modelState) programSteps(i int) []explore.ThreadStep[modelState] {
	f, pc := &w.files[i], &w.programs[i]
	leave := func(to int8) { f.readers--; *pc = to }
	switch *pc {
	case opens:
		if w.present < 0 {
			if w.resets[0].pc == resetOver && w.resets[1].pc == resetOver {
				*pc = programOver
				return singleStep("finds no device", w)
			}
			return nil // the thread tries again
		}
		if w.gone[w.present] {
			return nil
		}
		f.on, f.attached, *pc = w.present, true, enters
		return singleStep("opens the device", w)
	case enters:
		if !f.tryEnterFile() {
			return nil
		}
		*pc = gets
		return singleStep("enters GET_CONTEXT", w)
	case gets:
		if f.open {
			return nil
		}
		if f.state != ContextFresh || !w.dev[f.on].CanCreate() {
			leave(closes)
			return singleStep("is refused a context", w)
		}
		w.callDriver(f)
		if f.driver {
			w.recordViolation(11)
		}
		f.open, f.driver, *pc = true, true, begins
		return singleStep("makes the driver create a context", w)
	case begins:
		var ok bool
		f.open = false
		if f.state, ok = f.state.Open(); !ok {
			w.deallocContext(f)
			leave(closes)
			return singleStep("reverses its context, since the device is being removed", w)
		}
		leave(answers)
		return singleStep("has a context", w)
	case answers: // the answer is delivered, or it is not
		x, y := w, w
		x.files[i].state, _ = x.files[i].state.Commit()
		x.programs[i] = entersMaking
		y.programs[i] = entersAgain
		return append(singleStep("receives its context", x), singleStep("cannot receive its context", y)...)
	case entersAgain:
		if !f.tryEnterFile() {
			return nil
		}
		*pc = aborts
		return singleStep("begins to undo its context", w)
	case aborts:
		if f.open {
			return nil
		}
		var undo bool
		if f.state, undo = f.state.Abort(); undo {
			if !f.driver {
				w.recordViolation(2)
			}
			w.deallocContext(f)
		}
		leave(closes)
		if f.retried {
			return singleStep("undoes its context", w)
		}
		x := w
		x.files[i].retried = true
		x.programs[i] = enters
		return append(singleStep("undoes its context", w), singleStep("undoes its context, and tries again", x)...)
	case entersMaking:
		if !f.tryEnterFile() {
			return nil
		}
		*pc = makes
		return singleStep("enters CREATE_QP", w)
	case makes:
		if !f.state.CanCreate() || !w.dev[f.on].CanCreate() {
			leave(closes)
			return singleStep("is refused a queue pair", w)
		}
		if w.dev[f.on] != DeviceActive {
			w.recordViolation(10)
		}
		*pc = driverMakes
		return singleStep("may make a queue pair", w)
	case driverMakes:
		w.callDriver(f)
		if !f.driver {
			w.recordViolation(6)
		}
		f.driverQP, f.qp, *pc = true, 0, born
		return singleStep("makes the driver create a queue pair", w)
	case born:
		if w.dev[f.on] == DeviceGone {
			f.qp, _ = f.qp.BeginDestroy()
			w.destroyQP(f)
			leave(closes)
			return singleStep("destroys its new queue pair", w)
		}
		f.made = true
		leave(posts)
		return singleStep("has a queue pair", w)
	case posts:
		*pc = entersDestroying
		if !f.state.CanCreate() {
			return singleStep("cannot ring", w)
		}
		if !f.made || !f.driverQP && f.ends == [2]int8{} {
			w.recordViolation(8)
		}
		return singleStep("posts", w)
	case entersDestroying:
		if !f.tryEnterFile() {
			return nil
		}
		*pc = ends
		return singleStep("enters DESTROY_QP", w)
	case ends:
		var ok bool
		if !f.made {
			leave(closes)
			return singleStep("has no queue pair any more", w)
		}
		if f.qp, ok = f.qp.BeginDestroy(); !ok {
			f.made = false
			leave(closes)
			return singleStep("finds its queue pair destroyed", w)
		}
		*pc = driverEnds
		return singleStep("begins to destroy its queue pair", w)
	case driverEnds:
		// The driver may refuse the destruction once. Then the end of the file destroys the queue pair.
		x, y := w, w
		x.destroyQP(&x.files[i])
		x.files[i].made = false
		x.files[i].readers--
		x.programs[i] = closes
		y.files[i].qp, _ = y.files[i].qp.Refused()
		y.files[i].readers--
		y.programs[i] = closes
		return append(singleStep("destroys its queue pair", x), singleStep("is refused the end of its queue pair", y)...)
	case closes:
		var first bool
		if f.state, first = f.state.Close(); first {
			if f.ends[byClose] != notBegun {
				w.recordViolation(7)
			}
			f.ends[byClose] = wantsLife
			f.wants++
		}
		*pc = waitsClosed
		return singleStep("closes the file", w)
	case waitsClosed:
		if f.ends[byClose] != isOver {
			return nil
		}
		*pc = programOver
		return singleStep("has closed the file", w)
	}
	return nil
}

// endSteps returns the steps of the goroutine that ends a context.
func (w modelState) endSteps(i, kind int) []explore.ThreadStep[modelState] {
	f := &w.files[i]
	e := &f.ends[kind]
	switch *e {
	case wantsLife:
		if f.readers > 0 || f.writer {
			return nil
		}
		f.writer = true
		f.wants--
		*e = leaves
		if kind == byDevice {
			*e = flushes
		}
		return singleStep("begins the end of a context", w)
	case flushes:
		if f.driver {
			w.callDriver(f)
		}
		*e = leaves
		return singleStep("flushes", w)
	case leaves:
		if f.made {
			var ok bool
			if f.qp, ok = f.qp.BeginDestroy(); ok {
				w.destroyQP(f)
			}
			f.made = false
		}
		w.deallocContext(f)
		*e = lets
		return singleStep("removes all objects from the device", w)
	case lets:
		if kind == byClose {
			f.attached = false
		}
		f.writer = false
		*e = isOver
		return singleStep("has ended a context", w)
	}
	return nil
}

func (w modelState) resetSteps(i int) []explore.ThreadStep[modelState] {
	r := &w.resets[i]
	switch r.pc {
	case fails: // on the present device, without the slot's lock: a fatal event
		if w.present < 0 {
			r.pc = takesFlow
			return singleStep("finds no device to fail", w)
		}
		var tell bool
		if w.dev[w.present], tell = w.dev[w.present].Fail(); tell {
			w.told[w.present]++
		}
		r.of = w.present
		r.pc = takesFlow
		return singleStep("makes the device fail", w)
	case takesFlow:
		if w.flow {
			return nil
		}
		if r.of < 0 || r.of != w.present { // another reset was faster
			r.endReset()
			return singleStep("finds that device removed", w)
		}
		w.flow = true
		w.present = -1
		w.gone[r.of] = true
		r.pc = disassociates
		return singleStep("makes the device unavailable for opens", w)
	case disassociates: // the files, one after another
		for k := range w.files {
			f := &w.files[k]
			if f.on != r.of || !f.attached || f.ends[byDevice] != notBegun {
				continue
			}
			var begin bool
			if f.state, begin = f.state.Disassociate(); begin {
				f.ends[byDevice] = wantsLife
				f.wants++
				return singleStep("makes a zombie", w)
			}
			if f.ends[byClose] == notBegun {
				w.recordViolation(4)
			}
		}
		r.pc = waitsEnds
		return singleStep("has begun all ends", w)
	case waitsEnds:
		for k := range w.files {
			f := &w.files[k]
			if f.on == r.of && f.attached && f.ends[byDevice] != isOver && f.ends[byClose] != isOver {
				return nil
			}
		}
		r.pc = unregisters
		return singleStep("finds all contexts ended", w)
	case unregisters:
		for k := range w.files {
			if f := &w.files[k]; f.on == r.of && (f.driver || f.driverQP) {
				w.recordViolation(4)
			}
		}
		w.dev[r.of], _ = w.dev[r.of].Unregister()
		if _, ok := w.dev[r.of].Register(); ok {
			w.recordViolation(9)
		}
		r.pc = registers
		return singleStep("has unregistered the device", w)
	case registers:
		var ok bool
		if _, tell := w.dev[r.of].Fail(); tell { // another thread is late
			w.recordViolation(9)
		}
		if w.next < numLives {
			if w.dev[w.next], ok = w.dev[w.next].Register(); ok {
				w.present = w.next
			}
			w.next++
		}
		w.flow = false
		r.endReset()
		return singleStep("has registered the device again", w)
	}
	return nil
}

// endReset ends one reset.
func (r *deviceReset) endReset() {
	r.of = -1
	if r.left--; r.left > 0 {
		r.pc = fails
	} else {
		r.pc = resetOver
	}
}

func (w modelState) checkRules() error {
	if w.wrong > 0 {
		return errors.New(modelRules[w.wrong])
	}
	for i, n := range w.told {
		if n > 1 {
			return errors.New(modelRules[5])
		}
		if w.dev[i] == DeviceError && n == 0 {
			return errors.New("the driver does not receive the error")
		}
	}
	for i := range w.files {
		f := &w.files[i]
		if f.on < 0 {
			continue
		}
		if w.dev[f.on] == DeviceGone && (f.driver || f.driverQP || f.state == ContextLive) {
			return errors.New("a context remains on a removed device")
		}
		if w.programs[i] == entersMaking && f.ends == [2]int8{} && !f.state.CanCreate() {
			return errors.New("a program has a context that it cannot use")
		}
		if f.state == ContextLive && !f.driver && f.ends == [2]int8{} {
			return errors.New("a program has a context that the driver does not have")
		}
		if (f.ends[byDevice] == isOver || f.ends[byClose] == isOver) && (f.driver || f.driverQP) {
			return errors.New("a context remains after its end")
		}
	}
	return nil
}

func (w modelState) checkFinalState() error {
	for i, pc := range w.programs {
		if pc != programOver {
			return errors.New("a program waits forever")
		}
		if f := &w.files[i]; f.driver || f.driverQP || f.attached || f.readers != 0 || f.writer || f.wants != 0 ||
			f.on >= 0 && f.state != ContextClosed {
			return errors.New("objects of a file remain after its end")
		}
	}
	for _, r := range w.resets {
		if r.pc != resetOver {
			return errors.New("a reset waits forever")
		}
	}
	if w.flow {
		return errors.New("no further reset is possible")
	}
	for i := int8(0); i < w.next; i++ {
		if i != w.present && w.dev[i] != DeviceGone {
			return errors.New("a device has not been removed")
		}
	}
	if w.present < 0 || !w.dev[w.present].CanCreate() {
		return errors.New("the device was not registered again")
	}
	return nil
}

// TestExplore visits all states of the model.
func TestExplore(t *testing.T) {
	began := time.Now()
	all := explore.ExplorationSize{}
	for _, c := range []struct {
		name             string
		programs, resets int
		again            int8 // number of resets of the first thread
	}{
		{"a program, a reset", 1, 1, 1},
		{"a program and two consecutive resets", 1, 1, 2},
		{"a program and two concurrent resets", 1, 2, 1},
		{"two programs, a reset", 2, 1, 1},
		{"two programs and two consecutive resets", 2, 1, 2},
		{"two programs and two concurrent resets", 2, 2, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			if testing.Short() && c.programs+c.resets+int(c.again) > 4 {
				t.Skip("this case has a million states")
			}
			w := modelState{next: 1}
			w.dev[0], _ = w.dev[0].Register()
			for i := range w.files {
				w.files[i].on, w.files[i].qp = -1, ObjectEnded
				if i >= c.programs {
					w.programs[i] = programOver
				}
			}
			for i := range w.resets {
				w.resets[i] = deviceReset{of: -1, left: 1}
				if i >= c.resets {
					w.resets[i].pc = resetOver
				}
			}
			w.resets[0].left = c.again
			s := explore.System[modelState]{Start: w, Check: modelState.checkRules, End: modelState.checkFinalState}
			for i := range numFiles {
				s.Threads = append(s.Threads,
					func(w modelState) []explore.ThreadStep[modelState] { return w.programSteps(i) },
					func(w modelState) []explore.ThreadStep[modelState] { return w.endSteps(i, byDevice) },
					func(w modelState) []explore.ThreadStep[modelState] { return w.endSteps(i, byClose) })
			}
			for i := range w.resets {
				s.Threads = append(s.Threads, func(w modelState) []explore.ThreadStep[modelState] { return w.resetSteps(i) })
			}
			r, err := s.Run(3_000_000)
			if err != nil {
				t.Fatal(err)
			}
			t.Log(r)
			all.States += r.States
			all.Steps += r.Steps
			all.Ends += r.Ends
			all.Depth = max(all.Depth, r.Depth)
		})
	}
	t.Logf("%v; %v", all, time.Since(began).Round(time.Millisecond))
}
