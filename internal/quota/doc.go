// Package quota counts the resources of each user of a service, and refuses requests beyond a limit.
//
// A [Ledger] has two limits for each [ResourceKind] of resource. One limit is for each user ID. The other limit is for
// all users together, because a user with subordinate IDs has many user IDs. The last quarter of the total is a
// reserve. Only users who hold little of a kind get part of its reserve. A new user can therefore still work when
// others have reached their limits.
//
// The kernel has similar limits: RLIMIT_MEMLOCK, RLIMIT_NOFILE and the rdma controller of cgroups
// (Documentation/admin-guide/cgroup-v1/rdma.rst).
package quota
