// Package model is a reference model of a device. Its value holds objects, rights, states and memory, and states the
// specification's result of each call of package ib. It has no threads, no locks and no clock.
//
// A [Model] executes requests when they are posted, one after the other. If the specification does not define a result,
// the model sets [CallRecord.Open] to the reason. A test copies the model, makes a call on the copy, and skips the call
// if its result is open. The reasons for Open are the complete list of permitted differences. If a completion reveals
// which alternative the device has chosen, the alternatives are part of the expectation instead
// ([ExpectedCompletion.Status], [Memory.allowAlternative]), so such calls are not skipped.
//
// A deferred model ([Model.SetDeferredExecution]) is for concurrent calls: it only queues requests, and has moves for
// the actions of a device on them.
//
// Numbers chosen by the driver (keys, queue pair numbers, actual capacities) are arguments of the methods that create
// objects. Package modeltest draws calls, makes them on a device and on a model, and compares the two.
package model
