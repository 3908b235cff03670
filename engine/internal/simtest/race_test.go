//go:build race

package simtest_test

// schedules is the default of -schedules. A schedule runs on one goroutine: the race detector only makes it slower.
const schedules = 20

// replays is the number of schedules of each service that TestReplay plays twice.
const replays = 8

// travels is the default of -travels.
const travels = 10
