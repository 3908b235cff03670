package recover_present

import (
	"encoding/binary"
	"log"
	"sync"
)

// parse reads a message of a user's.
//
//verbena:parses
func parse(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }

// do contains a panic of f.
func do(f func()) {
	defer caught()
	f()
}

func caught() {
	if p := recover(); p != nil {
		log.Print(p)
	}
}

type socket struct{ b []byte }

func (s *socket) serve() {
	defer func() {
		if p := recover(); p != nil {
			log.Print(p)
		}
	}()
	parse(s.b)
}

func count() int { return 1 }

func start(s *socket, wg *sync.WaitGroup) {
	go s.serve()
	go func() {
		for range 3 {
			do(func() { parse(s.b) })
		}
	}()
	wg.Go(func() { do(func() { parse(s.b) }) })
	go count()
	parse(s.b) // in the caller's goroutine
}
