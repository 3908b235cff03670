package main

import "context"

// Kind is the kind of a measurement.
type Kind string

const (
	Floor Kind = "floor" // the lowest possible cost on this machine
	Ours  Kind = "ours"
	Peer  Kind = "peer" // an alternative for users
)

// Sample is the result of a measurement in one round.
type Sample struct {
	Value  float64
	Extras map[string]float64 // other figures of the same exchange, by the names in Section.Extras
}

// Measurement is a figure that is measured once in each round.
type Measurement struct {
	Name  string
	Kind  Kind
	Floor string // name of the measurement's floor in the same group, if any
	Peer  string // name of the peer measurement in the same group, if any
	Take  func(context.Context, *Env) (Sample, error)
}

// Group is a list of measurements that are compared with one another and therefore alternate.
type Group struct {
	Name         string
	Short        bool // included in a short run
	Measurements []Measurement
}

// Section holds the groups of one table.
type Section struct {
	Name   string // name for -run
	Title  string
	Unit   string
	Note   string
	Floor  string   // heading of the ratios to floors; empty means "floor"
	Peer   string   // heading of the ratios to peers
	Extras []string // names of further columns, with units
	Groups []Group
}
