#!/usr/bin/env bash
# Runs the unit tests of libfabric's efa provider on an EFA device without hardware. The tests replace functions by the
# linker's option --wrap, and need a device for the others. This job links them once more without the option, so that
# all functions are real, and runs each test. A test that fails then, because it gives results to a replaced function,
# must pass with the replaced functions. SOURCE is a source tree of libfabric, built with
#
#     ./configure --enable-efa --enable-efa-unit-test=/usr && make all prov/efa/test/efa_unit_test cmocka_rpath=
#
# With rdma-core 44, whose efadv.h lacks RDMA WRITE, configure needs CPPFLAGS=-DEFADV_DEVICE_ATTR_CAPS_RDMA_WRITE=16.
# It needs libcmocka-dev and gcc. The job of an Action or of GitLab CI is
#
#     recipes/jobs/efa-unit-tests.sh SOURCE [PATTERN]
#
# PATTERN selects tests. With VERBOSE=1, the job prints the tests that need the replaced functions.
set -euo pipefail

src=$(realpath "${1:?usage: efa-unit-tests.sh SOURCE [PATTERN], a built source tree of libfabric}")
pattern=${2:-.}
wrapped=$src/prov/efa/test/efa_unit_test
[ -x "$wrapped" ] || { echo "$wrapped does not exist: build libfabric with --enable-efa-unit-test" >&2; exit 1; }
if [ -z "${EFA_UNIT_INSIDE:-}" ]; then
	export EFA_UNIT_INSIDE=1
	exec "${VERBENA:-verbena}" run --private --link efa0=127.0.0.1,personality=efa -- "$0" "$src" "$pattern"
fi

# Tests that fail on this device with the replaced functions, too, and the reasons. packet: the provider sends a message
# of 4,096 or 9,000 bytes with a header in fewer packets of the real adapter, which have 8,900 bytes. The tests expect
# that number. efadv: the provider has been built without RDMA WRITE, if efadv.h of rdma-core does not have it.
known() {
	cat <<'TABLE'
packet test_rdm_cq_read_bad_send_status_unresponsive_receiver
packet test_rdm_cq_read_bad_send_status_unresponsive_receiver_missing_peer_host_id
packet test_rdm_cq_read_bad_send_status_unreachable_receiver
packet test_rdm_cq_read_bad_send_status_invalid_qpn
packet test_rdm_cq_read_bad_send_status_message_too_long
packet test_efa_rnr_queue_and_resend_msg
packet test_efa_rnr_queue_and_resend_tagged
packet test_efa_rdm_ep_post_queued_pkts_releases_pkt_on_error
packet test_efa_rdm_ope_prepare_to_post_send_host_memory
packet test_efa_rdm_ope_prepare_to_post_send_host_memory_align128
packet test_efa_rdm_ope_prepare_to_post_send_cuda_memory
packet test_efa_rdm_ope_prepare_to_post_send_cuda_memory_align128
packet test_efa_rdm_peer_destruct_clears_rnr_flag
packet test_efa_rdm_mr_gen_check_cancels_rnr_queued_ope
packet test_efa_rdm_mr_gen_check_cancels_longcts_ope
efadv test_efa_rdm_rma_should_write_using_rdma_p2p_and_rdma_write_support_returns_true
efadv test_efa_rdm_rma_should_write_using_rdma_remote_cq_data_single_iovs_with_rdma_support
TABLE
}

work=$(mktemp -d)
trap 'rm -rf "$work" "$src/prov/efa/test/efa_unit_test.real"' EXIT

# The objects refer to __real_NAME for the functions that they replace.
for object in "$src"/prov/efa/test/efa_unit_test-*.o; do
	copy=$work/${object##*/}
	nm "$object" | sed -n 's/^ *U \(__real_\(.*\)\)$/\1 \2/p' >"$work/names"
	objcopy --redefine-syms="$work/names" "$object" "$copy"
done
make -s -C "$src" EXEEXT=.real cmocka_rpath= prov_efa_test_efa_unit_test_OBJECTS="$(echo "$work"/*.o)" \
	prov_efa_test_efa_unit_test_LDFLAGS='-static $(efa_LDFLAGS) $(cmocka_LDFLAGS)' \
	prov/efa/test/efa_unit_test.real >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }

cat >"$work/filter.c" <<'SOURCE'
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>
__attribute__((constructor)) static void init(void) { cmocka_set_test_filter(getenv("TEST")); }
SOURCE
gcc -shared -fPIC -o "$work/filter.so" "$work/filter.c" -lcmocka

# run PROGRAM TEST prints the result of a test: passed, skipped or failed.
run() {
	if ! TEST=$2 LD_PRELOAD=$work/filter.so timeout -s KILL "${LIMIT:-5}" "$1" >"$work/out" 2>&1; then
		echo failed
	elif grep -q '<skipped' "$work/out"; then
		echo skipped
	elif grep -q 'tests="1"' "$work/out"; then
		echo passed
	else
		echo failed
	fi
}

declare -A count=([passed]=0 [skipped]=0 [replaced]=0 [known]=0 [failed]=0)
while read -r test; do
	result=$(run "$wrapped.real" "$test" 2>/dev/null)
	if [ "$result" = failed ]; then
		case $(run "$wrapped" "$test" 2>/dev/null) in
		passed) result=replaced ;;
		skipped) result=skipped ;;
		*) ! known | grep -q " $test\$" || result=known ;;
		esac
	fi
	count[$result]=$((count[$result] + 1))
	case $result in
	failed) echo "failed: $test" && tail -n 5 "$work/out" ;;
	replaced) [ -z "${VERBOSE:-}" ] || echo "needs replaced functions: $test" ;;
	esac >&2
done < <(sed -n 's/.*cmocka_unit_test[a-z_]*(\(test_[a-zA-Z0-9_]*\).*/\1/p' "$src/prov/efa/test/efa_unit_tests.c" |
	grep -- "$pattern")
echo "${count[passed]} tests passed with real functions, ${count[replaced]} with replaced ones," \
	"${count[known]} failed for a known reason, ${count[skipped]} were skipped, ${count[failed]} failed"
[ "${count[failed]}" = 0 ]
