// Package scenario runs failover tests from files: which devices there are, which programs run on them, what happens to the devices and when,
// and what is expected of it all.
//
// A [File] is read by [Parse], and run by a [Runner] on a service of its own ([Lab]), with programs that a [Starter] starts:
//
//	links are shaped -> moments that are counted are armed -> programs start, each when it is to -> actions, each at its moment
//	      -> programs have ended (or are killed at the time limit) -> expectations are checked -> Result
//
// Moments. An action happens at a time; when something is seen (a program prints or ends, a port is listened on, a counter reaches a value,
// another action is done); or just before the device executes its n-th send work request or sends its n-th packet, which the device itself
// does, so that the same seed gives the same action at the same work request. What cannot be counted by the device is not offered so.
//
// A [Result] has what happened when, for a person ([Result.Text]), a CI system ([Result.JUnit]), as a picture ([Result.Timeline]), and as JSON,
// with which [Result.Compare] tells what another run did differently.
package scenario
