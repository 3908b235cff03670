//go:build race

package ibtest

// registrations are those of testManyRegistrations, of which the race detector makes seconds.
const registrations = 1 << 12
