#!/usr/bin/env bash
# Runs UCX's own test of fault tolerance (run_ucx_perftest_fault_tolerance in contrib/test_jenkins.sh) on three rails,
# without hardware. The test blocks one rail after the other and expects that the traffic moves to the others. It needs
# UCX 1.23 or later, built in SOURCE with contrib/configure-devel and make. The job of an Action or of GitLab CI is
#
#     recipes/jobs/ucx-failover.sh SOURCE
#
# The test has a drop tool of its author, which is not public, and the transport rc_x of mlx5 devices. This script
# replaces the tool by `verbena fault add`, and rc_x by rc_v.
set -euo pipefail

src=$(realpath "${1:?usage: ucx-failover.sh SOURCE, a built source tree of UCX}")
for file in contrib/test_jenkins.sh src/tools/perf/ucx_perftest; do
	[ -e "$src/$file" ] || { echo "$src has no $file: build UCX with contrib/configure-devel and make" >&2; exit 1; }
done
if [ -z "${UCX_FAILOVER_INSIDE:-}" ]; then
	export UCX_FAILOVER_INSIDE=1
	exec "${VERBENA:-verbena}" run --private --link rxe0=127.0.0.11 --link rxe1=127.0.0.12 --link rxe2=127.0.0.13 \
		-- "$0" "$src"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

mkdir -p bin
ln -s "$src/src/tools/perf/ucx_perftest" bin/ucx_perftest
cat >bin/drop_tool <<TOOL
#!/bin/sh
# The test calls: drop_tool -d DEVICE -s SERVICE_LEVEL -t TRAFFIC_CLASS
exec "${VERBENA:-verbena}" fault add --dev "\$2" --sl "\$4" --drop 100%
TOOL
chmod +x bin/drop_tool

# The functions of the test, without the rest of the script, which builds UCX and runs all tests.
functions() {
	for name in expand_cpulist slice_affinity parse_active_devices verify_active_devices kill_background_processes \
		run_ucx_perftest_fault_tolerance; do
		sed -n "/^$name() {/,/^}/p" "$src/contrib/test_jenkins.sh"
	done | sed -e "s,^\(\s*drop_tool=\).*,\1$work/bin/drop_tool," -e 's,UCX_TLS=rc_x,UCX_TLS=rc_v,'
}
functions >functions.sh
grep -q "drop_tool=$work" functions.sh || { echo "$src has no run_ucx_perftest_fault_tolerance" >&2; exit 1; }

get_active_ib_devnames() { printf '%s\n' rxe0 rxe1 rxe2; }
ucx_inst=$work
EXECUTOR_NUMBER=0
export UCX_RC_VERBS_RETRY_COUNT=2
# The functions were written for a shell without these settings.
set +euo pipefail
. ./functions.sh
run_ucx_perftest_fault_tolerance
result=$?
grep -hE 'cfg#|rc_verbs' ucx_perftest.stdout
exit $result
