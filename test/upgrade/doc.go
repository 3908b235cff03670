// Package upgrade runs commands of an old revision with a service of this one, and the other way round: each is served,
// or refused with one line that says which is older and what to do. `make upgrade-test` runs it; it needs the
// repository's history.
package upgrade
