// Package model is a reference model of a device: a value that holds objects, rights, states and memory, and states the
// specification's result for each call of package ib. It has no threads, no locks and no clock.
//
// A [Model] executes requests when they are posted, one after another. Where the specification leaves a result open,
// the model sets [Model.Open] to the reason. A test copies the model, makes a call on the copy, and skips the call
// when its result is open; Open is the complete list of allowed differences. Alternatives that a completion shows are
// part of the expectation instead ([Want.Status], [Memory.Blur]), so that such calls are made.
//
// A deferred model ([Model.Defer]) is for concurrent calls: it only queues requests, and has moves for what a device does with them.
//
// Numbers that a driver chooses (keys, queue pair numbers, capacities granted) are inputs of the methods that create
// objects. Package modeltest draws calls, makes them on a device and on a model, and compares the two.
package model
