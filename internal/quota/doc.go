// Package quota counts what each user of a service holds, and refuses what goes beyond a limit.
//
// A [Ledger] has two limits for each [Kind] of resource: for one user id, and for all users together, since a user with
// subordinate ids is many. The last quarter of the total is a reserve: only users who hold little of the kind get any
// of it, so that a newcomer can still work when others have taken what they could.
//
// It is what the kernel does by RLIMIT_MEMLOCK, RLIMIT_NOFILE and the rdma controller of cgroups
// (Documentation/admin-guide/cgroup-v1/rdma.rst), in one place.
package quota
