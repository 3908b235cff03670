//go:build !race

package simtest_test

// schedules is the default of -schedules.
const schedules = 100
