#!/usr/bin/env bash
# Runs the tests of UCX's own gtest that use the transport srd, on an EFA device without hardware. It needs UCX 1.19 or
# later, built in SOURCE (or in a build folder of it) with contrib/configure-devel and make, and efadv.h of rdma-core.
# The job of an Action or of GitLab CI is
#
#     recipes/jobs/ucx-srd-gtest.sh SOURCE [FILTER]
#
# FILTER is a filter of gtest, by default the tests with srd, without those of speed, and without test_srd.put_*: they
# call a null pointer if efadv.h of rdma-core has no RDMA WRITE. LIMIT is the time for a suite in seconds. With
# VERBOSE=1, the job prints each suite.
set -euo pipefail

src=$(realpath "${1:?usage: ucx-srd-gtest.sh SOURCE [FILTER], a built source tree of UCX}")
filter=${2:-*srd*-*perf*:*/test_srd.put_*}
gtest=$src/test/gtest/gtest
[ -x "$gtest" ] || { echo "$gtest does not exist: build UCX with contrib/configure-devel and make" >&2; exit 1; }
if [ -z "${UCX_GTEST_INSIDE:-}" ]; then
	export UCX_GTEST_INSIDE=1
	exec "${VERBENA:-verbena}" run --private --link efa0=127.0.0.1,personality=efa -- "$0" "$src" "$filter"
fi

# Patterns of tests that fail on the real adapter, too, or outside Amazon's cloud, and the reasons.
known() {
	cat <<'TABLE'
# expects a global address only in Amazon's cloud, which it finds by the DMI; the transport always has one
srd/test_uct_ib_addr.fill_ah_attr/
# sends a command of mlx5 devices to each device
srd/test_uct_ib_sl.check_ib_sl_config_
# expects 1 for the shortest GET with zero copy, and the transport has 0
srd/uct_p2p_rma_test_inlresp.get_zcopy_inlresp0_devx_no/
# UCX has no protocol with numbered active messages for this transport
srd/test_ucp_am_psn.
TABLE
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export UCX_LOG_LEVEL=warn UCX_HANDLE_ERRORS=bt
limit=${LIMIT:-600} passed=0 skipped=0 expected=0 failed=0

"$gtest" --gtest_filter="$filter" --gtest_list_tests >"$work/list" 2>/dev/null
while read -r suite tests; do
	code=0
	(cd "$work" && timeout -s KILL "$limit" "$gtest" --gtest_filter="$tests" >"$work/log" 2>&1) || code=$?
	skip=$(grep -c '^\[     SKIP \]' "$work/log" || true) # gtest prints OK for these, too
	ok=$(($(grep -c '^\[       OK \]' "$work/log" || true) - skip))
	passed=$((passed + ok)) skipped=$((skipped + skip))
	[ -z "${VERBOSE:-}" ] || echo "$suite $ok passed, $skip skipped, exit code $code"
	[ $code != 0 ] || continue
	known | grep -v '^#' >"$work/known"
	sed -n 's/^\[  FAILED  \] \([^ ,]*\).* ([0-9]* ms)$/\1/p' "$work/log" >"$work/failed"
	if [ -s "$work/failed" ]; then
		expected=$((expected + $(grep -cF -f "$work/known" "$work/failed" || true)))
		failed=$((failed + $(grep -cvF -f "$work/known" "$work/failed" || true)))
		grep -vF -f "$work/known" "$work/failed" | sed 's/^/failed: /' >&2 || true
	else # a crash, or the limit
		echo "failed: $(sed -n 's/^\[ RUN      \] //p' "$work/log" | tail -n 1): exit code $code" >&2
		tail -n 5 "$work/log" >&2
		failed=$((failed + 1))
	fi
done < <(awk '/^[^ ]*\.( |$)/ { suite = $1; order[++n] = suite; next }
	/^  / && suite { tests[suite] = tests[suite] (tests[suite] ? ":" : "") suite $1 }
	END { for (i = 1; i <= n; i++) print order[i], tests[order[i]] }' "$work/list")
echo "$passed tests of UCX passed, $skipped were skipped, $expected failed for a known reason, $failed failed"
[ $failed = 0 ]
