// Package conn implements one connection of the communication manager (IBA 12.9; drivers/infiniband/core/cm.c). It
// defines the state of the connection, and the transitions caused by messages, calls and time. A connection is a
// value. The caller sends the messages, runs the timer and reports the events that a transition requires.
package conn
