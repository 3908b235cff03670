// Package privilege gives up what a service needs no longer: capabilities, core dumps, and being read by other
// processes. It holds for every thread of the process, present and future, and cannot be undone.
package privilege
