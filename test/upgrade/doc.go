// Package upgrade runs commands of an old revision with a service of the current revision, and vice versa. The
// service executes each command, or refuses it with one line that names the older side and the remedy. `make
// upgrade-test` runs the tests. The package needs the repository's history.
package upgrade
