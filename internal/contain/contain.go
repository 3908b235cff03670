// Package contain prevents a panic of one request from ending the process. A service parses input from users. A bug
// in the parser must end the user's program or connection, and not the service.
package contain

import (
	"log/slog"
	"runtime/debug"
)

// RecoverPanic calls f. If f panics, RecoverPanic calls failed with the panic's value and stack, and returns. failed
// may be nil.
func RecoverPanic(f func(), failed func(p any, stack []byte)) {
	defer func() {
		if p := recover(); p != nil && failed != nil {
			failed(p, debug.Stack())
		}
	}()
	f()
}

// LogPanic returns a function for RecoverPanic that logs the panic with a text and attributes.
func LogPanic(log *slog.Logger, text string, args ...any) func(p any, stack []byte) {
	return func(p any, stack []byte) {
		log.Error(text, append([]any{"panic", p, "stack", string(stack)}, args...)...)
	}
}
