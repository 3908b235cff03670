package main

import "context"

// Kind says what a measurement is of.
type Kind string

const (
	Floor Kind = "floor" // the least that it can cost here
	Ours  Kind = "ours"
	Peer  Kind = "peer" // what else a user could take
)

// Sample is the result of one measurement in one round.
type Sample struct {
	Value  float64
	Extras map[string]float64 // other figures of the same exchange, by the names of Section.Extras
}

// Measurement is one kind of figure, taken once in each round.
type Measurement struct {
	Name  string
	Kind  Kind
	Floor string // the measurement of the same group that is its floor, if any
	Peer  string // the measurement of the same group to compare with, if any
	Take  func(context.Context, *Env) (Sample, error)
}

// Group is measurements that are compared with one another, and so are taken in turn.
type Group struct {
	Name         string
	Short        bool // also in a short run
	Measurements []Measurement
}

// Section is groups that are printed in one table.
type Section struct {
	Name   string // for -run
	Title  string
	Unit   string
	Note   string
	Floor  string   // heading of the ratios to floors; empty: "floor"
	Peer   string   // heading of the ratios to peers
	Extras []string // the names of further columns, with units
	Groups []Group
}
