package uverbs

import "time"

// pipeGate limits the number of threads in calls on the pipes of one context and of one user, because these calls may
// block for ever. A nil pipeGate has no limit.
type pipeGate struct{ context, user chan struct{} }

const (
	// maxAtPipes is the limit for a context, and maxUserAtPipes is the limit for a user.
	maxAtPipes     = 4
	maxUserAtPipes = 64
	// pipeTimeout limits the wait for a blocked pipe when an object is destroyed or a file is closed. Events that could
	// not be removed from the pipe remain readable for the program.
	pipeTimeout = 100 * time.Millisecond
)

func newPipeGate(user chan struct{}) *pipeGate {
	return &pipeGate{make(chan struct{}, maxAtPipes), user}
}

// noWait is an expired limit of enter.
var noWait = func() <-chan time.Time {
	c := make(chan time.Time)
	close(c)
	return c
}()

// enter waits until the limits allow a call on a pipe, or until expired. It returns false if expired comes first. It
// waits without a limit if expired is nil.
func (g *pipeGate) enter(expired <-chan time.Time) bool {
	switch {
	case g == nil:
		return true
	case !takePlace(g.context, expired):
		return false
	case !takePlace(g.user, expired):
		<-g.context
		return false
	}
	return true
}

// takePlace adds an element to a channel when there is space. It returns false if expired comes first.
func takePlace(limit chan<- struct{}, expired <-chan time.Time) bool {
	select {
	case limit <- struct{}{}:
		return true
	default:
	}
	select {
	case limit <- struct{}{}:
		return true
	case <-expired:
		return false
	}
}

func (g *pipeGate) leave() {
	if g != nil {
		<-g.user
		<-g.context
	}
}
