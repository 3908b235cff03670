package notify

import (
	"errors"
	"testing"
	"time"

	"verbena/internal/explore"
)

// The model has four parts. A driver posts completions and reports them under the queue's lock, like package rxe.
// The midlayer has a queue of callbacks, and two threads that run them. A consumer polls and arms in its handler. A
// thread destroys the queue. The shared state changes only by the transitions of this package.

// modelRules lists the rules that a single transition can violate.
var modelRules = [...]string{
	1: "the driver reports a completion that was not requested",
	2: "the driver does not report a requested completion",
	3: "a callback begins after the end of the queue has begun",
}

// pollStyle is the way in which a consumer avoids missing completions.
type pollStyle uint8

const (
	// The consumer polls until the queue is empty, arms, and polls again if arming reports missed completions.
	asksMissed pollStyle = iota
	armsFirst            // arms, and polls until the queue is empty
	solicits             // like asksMissed, but arms for solicited completions
	mixes                // like solicits, but also arms for every completion outside of the handler
)

// modelState is a state of the model. The first fields are the parameters of the exploration, which never change.
type modelState struct {
	style   pollStyle
	refuses bool // the driver refuses to destroy the queue

	arm       Arming
	wanted    Arming // requests since the last report of the driver, as specified (IBA 11.4.2.2)
	wrong     uint8  // rule that a transition has violated, as an index of rules
	notice    Notice
	handlers  uint8 // number of handlers in the queue of callbacks
	events    uint8 // number of events in the queue of callbacks
	waiting   uint8 // number of completions in the completion queue
	posted    uint8
	seen      uint8
	mu        bool // the driver's lock is held
	polling   bool // the resizer holds the pollers' lock; a poll is a single step
	destroyed bool
	inHandler uint8
	inEvent   uint8
	delivered uint8
	raised    uint8 // number of raised events

	producers [2]completionProducer
	runners   [2]runnerPosition
	arms      uint8 // operation of the consumer outside of its handler
	resizer   uint8
	destroyer uint8
}

// completionProducer posts left completions, of which the last is solicited, and optionally raises an event.
type completionProducer struct {
	pc, left uint8
	raises   bool
}

// The following constants are the positions of a producer.
const (
	posts uint8 = iota
	tells
	queues
	raises
	queuesEvent
)

func (w modelState) producerSteps(i int) []explore.ThreadStep[modelState] {
	p := &w.producers[i]
	step := func(what string) []explore.ThreadStep[modelState] {
		return []explore.ThreadStep[modelState]{{What: what, To: w}}
	}
	posted := func() {
		w.mu = false
		p.pc = posts
		if p.left--; p.left == 0 && p.raises {
			p.pc = raises
		}
	}
	switch p.pc {
	case posts:
		if p.left == 0 || w.mu {
			return nil
		}
		if w.destroyed { // the completion is lost
			posted()
			return step("posts to a destroyed queue")
		}
		w.mu = true
		w.waiting++
		w.posted++
		solicited := p.left == 1
		asked := w.wanted == armedNext || w.wanted == armedSolicited && solicited
		var tell bool
		w.arm, tell = w.arm.Posted(solicited)
		switch {
		case tell && !asked:
			w.wrong = 1
		case asked && !tell:
			w.wrong = 2
		}
		if tell {
			w.wanted = disarmed
			p.pc = tells
		} else {
			posted()
		}
		return step("posts a completion")
	case tells:
		var queue bool
		if w.notice, queue = w.notice.Completed(); queue {
			p.pc = queues
		} else {
			posted()
		}
		return step("reports the completion")
	case queues:
		w.handlers++
		posted()
		return step("queues the handler")
	case raises:
		p.raises = false
		var queue bool
		if w.notice, queue = w.notice.QueueEvent(); queue {
			p.pc = queuesEvent
			w.raised++
		} else {
			p.pc = posts
		}
		return step("raises an event")
	case queuesEvent:
		w.events++
		p.pc = posts
		return step("queues the event")
	}
	return nil
}

// armQueue arms the queue.
func (w *modelState) armQueue(every bool) {
	w.arm = w.arm.Request(every)
	if every {
		w.wanted = armedNext
	} else {
		w.wanted = max(w.wanted, armedSolicited)
	}
}

// isQueueEnding reports whether the end of the queue has begun and was not reversed.
func (w *modelState) isQueueEnding() bool {
	return w.destroyer > dies && !w.refuses || w.destroyer > dies && w.destroyer <= revives
}

// runnerPosition is the position of a thread that runs callbacks.
type runnerPosition uint8

const (
	free runnerPosition = iota
	begins
	first  // first operation of the handler: poll, or arm
	second // second operation: arm, or poll
	leaves
	returns
	requeues
	wakes // wakes the thread that waits for the end of callbacks
	delivers
	inFunction
	ends
)

func (w modelState) runnerSteps(i int) []explore.ThreadStep[modelState] {
	r := &w.runners[i]
	step := func(what string) []explore.ThreadStep[modelState] {
		return []explore.ThreadStep[modelState]{{What: what, To: w}}
	}
	poll := func(empty runnerPosition) string {
		if w.waiting == 0 {
			*r = empty
			return "finds the queue empty"
		}
		w.waiting--
		w.seen++
		return "polls a completion"
	}
	switch *r {
	case free:
		var list []explore.ThreadStep[modelState]
		if w.handlers > 0 {
			x := w
			x.handlers--
			x.runners[i] = begins
			list = append(list, explore.ThreadStep[modelState]{What: "dequeues the handler", To: x})
		}
		if w.events > 0 {
			x := w
			x.events--
			x.runners[i] = delivers
			list = append(list, explore.ThreadStep[modelState]{What: "dequeues the event", To: x})
		}
		return list
	case begins:
		var call bool
		if w.notice, call = w.notice.BeginHandler(); !call {
			*r = returns
			return step("does not call the handler")
		}
		if w.isQueueEnding() {
			w.wrong = 3
		}
		w.inHandler++
		*r = first
		return step("calls the handler")
	case first, second:
		if arms := (w.style == armsFirst) == (*r == first); arms && w.mu || !arms && w.polling {
			return nil
		}
		if (w.style == armsFirst) == (*r == first) {
			w.armQueue(w.style < solicits)
			switch {
			case w.style == armsFirst:
				*r = second
			case w.waiting > 0:
				*r = first
			default:
				*r = leaves
			}
			return step("arms the queue")
		}
		if w.style == armsFirst {
			return step(poll(leaves))
		}
		return step(poll(second))
	case leaves:
		w.inHandler--
		*r = returns
		return step("leaves the handler")
	case returns:
		var queue bool
		if w.notice, queue = w.notice.EndHandler(); queue {
			*r = requeues
		} else {
			*r = wakes
		}
		return step("records the return of the handler")
	case requeues:
		w.handlers++
		*r = wakes
		return step("queues the handler again")
	case delivers:
		var call bool
		if w.notice, call = w.notice.BeginEvent(); !call {
			*r = ends
			return step("does not deliver the event")
		}
		if w.isQueueEnding() {
			w.wrong = 3
		}
		w.inEvent++
		*r = inFunction
		return step("calls the event function")
	case inFunction:
		w.inEvent--
		w.delivered++
		*r = ends
		return step("leaves the event function")
	case ends:
		w.notice, _ = w.notice.EndEvent()
		*r = wakes
		return step("records the return of the event function")
	case wakes:
		if w.destroyer == waits {
			w.destroyer = looks
		}
		*r = free
		return step("wakes the waiting thread")
	}
	return nil
}

// The following constants are the positions of the thread that destroys the queue.
const (
	nobody uint8 = iota
	dies
	looks
	waits
	frees
	revives
	requeuesRevived
	hasEnded
)

func (w modelState) destroySteps() []explore.ThreadStep[modelState] {
	step := func(what string) []explore.ThreadStep[modelState] {
		return []explore.ThreadStep[modelState]{{What: what, To: w}}
	}
	switch w.destroyer {
	case dies:
		w.notice, _ = w.notice.Die()
		w.destroyer = looks
		return step("ends the callbacks")
	case looks:
		if w.notice.IsQuiet() {
			w.destroyer = frees
			return step("finds no callback")
		}
		w.destroyer = waits
		return step("waits for the remaining callbacks")
	case frees:
		switch {
		case w.mu || w.polling:
			return nil
		case w.refuses:
			w.destroyer = revives
			return step("is refused by the driver")
		}
		w.destroyed = true
		w.destroyer = hasEnded
		return step("frees the queue")
	case revives:
		var queue bool
		if w.notice, queue = w.notice.Revive(); queue {
			w.destroyer = requeuesRevived
		} else {
			w.destroyer = hasEnded
		}
		return step("reverses the end of the callbacks")
	case requeuesRevived:
		w.handlers++
		w.destroyer = hasEnded
		return step("queues the handler")
	}
	return nil
}

// consumerSteps returns the steps of the consumer outside of its handler. It arms the queue, and then polls earlier
// completions.
func (w modelState) consumerSteps() []explore.ThreadStep[modelState] {
	step := func(what string) []explore.ThreadStep[modelState] {
		return []explore.ThreadStep[modelState]{{What: what, To: w}}
	}
	if w.arms == 1 && w.mu || w.arms == 2 && w.polling || w.destroyed {
		return nil
	}
	switch w.arms {
	case 1:
		w.armQueue(w.style != solicits)
		w.arms = 2
		return step("arms the queue")
	case 2:
		if w.waiting == 0 {
			w.arms = 0
			return step("finds the queue empty")
		}
		w.waiting--
		w.seen++
		return step("polls a completion")
	}
	return nil
}

// resizeSteps moves the completions to another ring, under both locks.
func (w modelState) resizeSteps() []explore.ThreadStep[modelState] {
	step := func(what string) []explore.ThreadStep[modelState] {
		return []explore.ThreadStep[modelState]{{What: what, To: w}}
	}
	switch {
	case w.resizer == 1 && !w.polling && !w.destroyed:
		w.polling = true
		w.resizer = 2
		return step("takes the lock of the pollers")
	case w.resizer == 2 && !w.mu:
		w.mu = true
		w.resizer = 3
		return step("takes the lock of the driver")
	case w.resizer == 3:
		w.mu, w.polling, w.resizer = false, false, 0
		return step("has moved the completions")
	}
	return nil
}

// isQueueInUse reports whether a thread is about to use the queue.
func (w modelState) isQueueInUse() bool {
	for _, r := range w.runners {
		if r != free && r != wakes {
			return true
		}
	}
	return false
}

func (w modelState) checkRules() error {
	switch {
	case w.inHandler > 1:
		return errors.New("two handlers of one queue run at the same time")
	case w.handlers > 1:
		return errors.New("the handler is queued twice")
	case w.waiting+w.seen != w.posted:
		return errors.New("a completion was lost or seen twice")
	case w.wrong > 0:
		return errors.New(modelRules[w.wrong])
	case w.destroyed && (w.inHandler > 0 || w.inEvent > 0):
		return errors.New("a callback runs after the end of the queue")
	case w.destroyed && (w.handlers > 0 || w.events > 0 || w.isQueueInUse()):
		return errors.New("the queue is used after its end")
	case w.delivered > w.raised:
		return errors.New("an event was delivered twice")
	}
	return nil
}

func (w modelState) checkFinalState() error {
	for _, p := range w.producers {
		if p.pc != posts || p.left > 0 {
			return errors.New("a producer waits forever")
		}
	}
	for _, r := range w.runners {
		if r != free {
			return errors.New("a callback thread waits forever")
		}
	}
	switch {
	case w.destroyer != nobody && w.destroyer != hasEnded:
		return errors.New("the end of the queue waits forever")
	case w.destroyed:
		return nil
	case w.waiting > 0:
		return errors.New("a notification was lost: completions wait, and no thread will poll")
	case w.destroyer == nobody && w.delivered != w.raised:
		return errors.New("an event was lost")
	case !w.notice.IsQuiet():
		return errors.New("Due: got true without a queued callback")
	}
	return nil
}

// TestExplore visits all states of the model, for each combination of producers, callback threads, consumer and
// destroyer.
func TestExplore(t *testing.T) {
	began := time.Now()
	all := explore.ExplorationSize{}
	for _, c := range []struct {
		name  string
		start modelState
	}{
		{"one producer, two threads for callbacks", modelState{producers: [2]completionProducer{{left: 4}}}},
		{"two producers, two threads for callbacks", modelState{producers: [2]completionProducer{{left: 2, raises: true},
			{left: 2}}}},
		{"while the consumer begins", modelState{producers: [2]completionProducer{{left: 3, raises: true}}, arms: 1}},
		{"while the queue is resized", modelState{producers: [2]completionProducer{{left: 3, raises: true}}, resizer: 1}},
		{"while the queue is resized and destroyed", modelState{producers: [2]completionProducer{{left: 3}}, resizer: 1,
			destroyer: dies}},
		{"while the queue is destroyed", modelState{producers: [2]completionProducer{{left: 3, raises: true}},
			destroyer: dies}},
		{"while two producers post and the queue is destroyed",
			modelState{producers: [2]completionProducer{{left: 2}, {left: 2, raises: true}}, destroyer: dies}},
		{"while the end of the queue is refused", modelState{producers: [2]completionProducer{{left: 3, raises: true}},
			destroyer: dies,
			refuses:   true}},
		{"while two producers post and the end of the queue is refused",
			modelState{producers: [2]completionProducer{{left: 2},
				{left: 2, raises: true}},
				destroyer: dies, refuses: true}},
	} {
		for s, how := range []string{"asks what it missed", "arms first", "arms for solicited", "arms for both"} {
			t.Run(c.name+", "+how, func(t *testing.T) {
				w := c.start
				w.style = pollStyle(s)
				if w.arms == 0 {
					w.arm = armedNext
				}
				w.wanted = w.arm
				if w.style >= solicits {
					w.armQueue(false)
				}
				system := explore.System[modelState]{
					Start: w, Check: modelState.checkRules, End: modelState.checkFinalState,
					Threads: []explore.Thread[modelState]{
						func(w modelState) []explore.ThreadStep[modelState] { return w.producerSteps(0) },
						func(w modelState) []explore.ThreadStep[modelState] { return w.producerSteps(1) },
						func(w modelState) []explore.ThreadStep[modelState] { return w.runnerSteps(0) },
						func(w modelState) []explore.ThreadStep[modelState] { return w.runnerSteps(1) },
						modelState.consumerSteps, modelState.resizeSteps, modelState.destroySteps,
					},
				}
				r, err := system.Run(2_000_000)
				if err != nil {
					t.Fatal(err)
				}
				all.States += r.States
				all.Steps += r.Steps
				all.Ends += r.Ends
				all.Depth = max(all.Depth, r.Depth)
			})
		}
	}
	t.Logf("%v; %v", all, time.Since(began).Round(time.Millisecond))
}
