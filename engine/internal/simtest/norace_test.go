//go:build !race

package simtest_test

// schedules is the default of -schedules.
const schedules = 100

// replays is the number of schedules of each service that TestReplay plays twice.
const replays = 30

// travels is the default of -travels.
const travels = 60
