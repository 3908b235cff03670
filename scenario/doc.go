// Package scenario runs failover tests from files. A scenario file lists the devices, the programs to run on them,
// the actions on the devices with their moments, and the expected results.
//
// [parseFile] reads a [File]. A [Runner] runs the File on a separate service ([lab]), and a [starter] starts its
// programs:
//
//	shape the links -> arm counted moments -> start each program at its moment -> do each action at its moment
//	      -> all programs have ended, or were killed at the time limit -> check the expectations -> Result
//
// An action has a moment. A moment is a time, an observed event, or a count. The events are: a program prints a
// line or ends, a TCP port has a listener, a counter reaches a value, or another action is done. A count is just
// before the device executes its n-th send work request or sends its n-th packet. The device itself executes an
// action at a count, so the same seed gives the same action at the same work request. Other events cannot be
// counted.
//
// A [Result] holds all events with their times. A Result can be written as text ([Result.WriteText]), JSON, a picture
// ([Result.WriteTimeline]), or a report for CI systems ([Result.WriteJUnit]). [Result.Compare] compares the JSON of two
// runs.
package scenario
