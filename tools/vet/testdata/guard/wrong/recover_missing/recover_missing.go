package recover_missing

import (
	"encoding/binary"
	"sync"
	"time"
)

// parse reads a message of a user's.
//
//verbena:parses
func parse(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }

func answer(b []byte) uint32 { return parse(b) + 1 }

type socket struct{ b []byte }

func (s *socket) serve() {
	for range 3 {
		answer(s.b)
	}
}

func start(s *socket, wg *sync.WaitGroup) {
	go s.serve() // want "recover: .*start starts a goroutine that parses bytes of a user without a recover: it calls .*answer"
	go func() {  // want "recover: .*start starts a goroutine that parses"
		defer wg.Done()
		answer(s.b)
	}()
	wg.Go(s.serve)                                      // want "recover: .*start starts a goroutine"
	time.AfterFunc(time.Second, func() { answer(s.b) }) // want "recover: .*start starts a goroutine"
	go parse(s.b)                                       // want "recover: .*without a recover$"
	go each(s.b, func(b []byte) { answer(b) })          // want "recover: .*start starts a goroutine"
}

func each(b []byte, f func([]byte)) { f(b) }
