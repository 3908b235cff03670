// Package explain derives the causes of failures from the facts that devices, the connection manager and the calls of
// programs report. It serves a service, which reports facts and shows the causes to users.
//
// A [Recorder] implements driver.Observer. It keeps the latest facts of each queue pair. If a work request fails, the
// Recorder follows the connection to the other end. If that end belongs to this service, its facts decide. Otherwise
// the cause says that there was no answer. A cause is one row of [Table]. If no fact decides, the row says that the
// reason is unknown.
//
// A cause belongs to the user of the failed queue pair. A user sees facts about the other end if both ends
// belong to the same user. Managers see the facts of both ends.
//
// The package has no goroutine and no clock. The memory of a Recorder is bounded: see [Limits]. A Recorder keeps
// values, and no reference to a context or a queue pair.
package explain
