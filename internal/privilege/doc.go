// Package privilege drops privileges that a service no longer needs: capabilities, core dumps, and access by other
// processes. It affects all present and future threads of the process, and is permanent.
package privilege
