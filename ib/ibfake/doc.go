// Package ibfake provides a fake driver for tests of consumers of package ib. Its objects exist, but do nothing by
// themselves. A test can make its methods fail ([Driver.Fail]) or wait ([Driver.Hold]), inspect destroyed objects
// ([Driver.Destroyed]) and posted requests ([QP.Sent]), and raise completions and events ([CQ.Complete], [QP.Raise]).
//
// The queue pairs of package driver/loopback transfer data.
package ibfake
