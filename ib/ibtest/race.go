//go:build race

package ibtest

// registrations are those of testManyRegistrations, of which the race detector makes seconds.
const registrations = 1 << 12

// defaultSeeds is the number of seeds of a check of the group Model that takes about two seconds on package loopback.
const defaultSeeds = 30
