// Package conn is one connection as the communication manager keeps it (IBA 12.9; drivers/infiniband/core/cm.c): a
// state, and the rules by which messages, calls and time change it. It is a value: who uses it sends the messages, runs
// the timer and reports the events that a transition asks for.
package conn
