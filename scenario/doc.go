// Package scenario runs failover tests from files. A file lists the devices, the programs to run on them, the actions
// on the devices with their moments, and the expected results.
//
// [Parse] reads a [File]. A [Runner] runs it on a service of its own ([Lab]); a [Starter] starts its programs:
//
//	shape the links -> arm counted moments -> start each program at its moment -> do each action at its moment
//	      -> all programs have ended, or were killed at the time limit -> check the expectations -> Result
//
// An action has a moment. The moment is a time, an observed event, or a count. Events are: a program prints a line or
// ends, a TCP port has a listener, a counter reaches a value, another action is done. A count is just before the
// device executes its n-th send work request or sends its n-th packet. The device itself does such an action, so the
// same seed gives the same action at the same work request. Other events cannot be counted.
//
// A [Result] holds all events with their times. It can be written as text ([Result.Text]), JSON, a picture
// ([Result.Timeline]), or a report for CI systems ([Result.JUnit]). [Result.Compare] compares the JSON of two runs.
package scenario
