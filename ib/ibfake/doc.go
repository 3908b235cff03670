// Package ibfake has a driver for the tests of what stands on package ib: its objects exist, and do nothing by themselves. A test
// makes its methods fail ([Driver.Fail]) or wait ([Driver.Hold]), looks at what was destroyed ([Driver.Destroyed]) and posted
// ([QP.Sent]), and raises what a device would raise ([CQ.Complete], [QP.Raise]).
//
// A driver whose queue pairs carry data is package driver/loopback.
package ibfake
