//go:build !race

package ibtest

// registrations are those of testManyRegistrations: more than 16 bits of the keys can tell apart.
const registrations = 1<<16 + 300
