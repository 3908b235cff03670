// Package weak tests consumers against the most difficult device that the specification permits. [New] wraps any
// [ib.Driver]. The resulting driver meets the contract of package ib. The driver makes choices that the specification
// leaves to a device, that correct consumers tolerate, and on which incorrect consumers fail:
//
//	d := loopback.New("weak0", nil)
//	d.Handle().Wrap(func(d ib.Driver) ib.Driver { return weak.New(d, weak.Config{Seed: 1}) })
//
// [Choices] is the table of the choices. For each choice, the table states the clause that permits the choice and the
// misuse that the choice exposes. The choices are derived from the seed, for each queue pair in creation order and each
// work request in posting order. The choices do not depend on time: if a consumer makes the same calls, the delays are
// the same.
//
// A delay is counted in steps. Each Poll of the completion queue is one step. While a completion, request or event is
// delayed, each period of 200 µs is one step as well. User contexts post and poll without a call. The objects of user
// contexts are passed through unchanged. Package driver/relay brings the choices to user contexts: for each context
// that asks for them (see [User]), it posts the requests to a weak device with a [Relay].
//
// On a reliable queue pair, about one request in 100 is held until the consumer has posted up to 64 further requests,
// or nothing for 40 steps.
//
// The checks of package ibtest are correct consumers, with two exceptions. Some checks read memory before its
// completion, and some count the completions in a queue with one Poll.
package weak
