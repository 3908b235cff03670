// Package quota counts the resources of each user of a service, and refuses requests beyond a limit.
//
// A [Ledger] has two limits for each [Kind] of resource: for one user ID, and for all users together, since a user with
// subordinate IDs has many. The last quarter of the total is a reserve. Only users who hold little of the kind get any
// of it, so that a new user can still work when others have reached their limits.
//
// The kernel does the same by RLIMIT_MEMLOCK, RLIMIT_NOFILE and the rdma controller of cgroups
// (Documentation/admin-guide/cgroup-v1/rdma.rst).
package quota
