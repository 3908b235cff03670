// Package privilege drops privileges that a service no longer needs: capabilities, core dumps, and access by other
// processes. The changes affect all present and future threads of the process, and are permanent.
package privilege
