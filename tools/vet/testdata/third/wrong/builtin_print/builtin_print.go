// Package builtin_print: a handler prints by the functions of the language, which write to standard error.
package builtin_print

import "verbena/ib"

func handler(cq *ib.CQ) {
	println("handler")  // want "nosleep: .* may sleep: it writes to standard error by println"
	defer print("done") // want "nosleep: .* may sleep: it writes to standard error by print"
}

func open(d *ib.Device) (*ib.CQ, error) { return d.CreateCQ(ib.CQInit{Entries: 4, Handler: handler}) }
