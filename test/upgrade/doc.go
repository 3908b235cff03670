// Package upgrade runs commands of an old revision with a service of this one, and vice versa. Each command is served,
// or refused with one line that names the older side and the remedy. `make upgrade-test` runs the tests. It needs the
// repository's history.
package upgrade
