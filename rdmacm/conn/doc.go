// Package conn implements one connection of the communication manager (IBA 12.9; drivers/infiniband/core/cm.c): its
// state, and the transitions caused by messages, calls and time. It is a value: the caller sends the messages, runs the
// timer and reports the events that a transition requires.
package conn
