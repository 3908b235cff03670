package observe

import (
	"bytes"
	"runtime"
	"strconv"
)

// GoroutineID returns the number of the calling goroutine. GoroutineID takes about a microsecond.
func GoroutineID() int64 {
	var buf [64]byte
	b := bytes.TrimPrefix(buf[:runtime.Stack(buf[:], false)], []byte("goroutine "))
	n, _, _ := bytes.Cut(b, []byte(" "))
	id, err := strconv.ParseInt(string(n), 10, 64)
	if err != nil {
		panic("observe: runtime.Stack begins with " + strconv.Quote(string(b)))
	}
	return id
}
