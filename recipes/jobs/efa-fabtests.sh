#!/usr/bin/env bash
# Runs fabtests over the efa provider of libfabric on an EFA device, without hardware. PREFIX is the installation folder of
# libfabric and its fabtests, both configured with --enable-efa. The job of an Action or of GitLab CI is
#
#     recipes/jobs/efa-fabtests.sh PREFIX [PATTERN]
#
# PATTERN selects commands of the table. With LOSS=1%, the device loses and reorders packets. LIMIT is the time for a
# program in seconds. With VERBOSE=1, the job prints each test.
set -euo pipefail

prefix=$(realpath "${1:?usage: efa-fabtests.sh PREFIX [PATTERN], the installation folder of libfabric with fabtests}")
pattern=${2:-.}
[ -e "$prefix/bin/fi_efa_info_test" ] ||
	{ echo "$prefix/bin/fi_efa_info_test does not exist: build fabtests with --enable-efa" >&2; exit 1; }
if [ -z "${FABTESTS_INSIDE:-}" ]; then
	export FABTESTS_INSIDE=1
	exec "${VERBENA:-verbena}" run --private --link efa0=127.0.0.1,personality=efa -- "$0" "$prefix" "$pattern"
fi
if [ -n "${LOSS:-}" ]; then
	"${VERBENA:-verbena}" fault add --dev efa0 --drop "$LOSS" >/dev/null
	"${VERBENA:-verbena}" fault add --dev efa0 --reorder "$LOSS" >/dev/null
fi

# Each line is a test of fabtests/pytest/efa or of pytest/default, with host memory: the expected exit code, the fabric
# (-: any), the number of processes, and the program with its environment and arguments. The code is that of the server,
# or that of the client if the server succeeds. 61 is FI_ENODATA: the provider has no endpoint with these properties.
tests() {
	cat <<'TABLE'
0 efa,efa-direct 2 fi_rdm
0 efa,efa-direct 2 fi_rdm -U
0 - 2 fi_rdm_bw -S 1048576 -I 5
0 efa 2 fi_flood -e rdm -v -T 1
0 efa,efa-direct 2 fi_flood -e rdm -W 640 -S 512 -T 5
0 efa 2 fi_rdm_pingpong -I 5 -v -S SIZES
0 efa 2 fi_rdm_pingpong -I 5 -v -S SIZES -U
0 efa 2 fi_rdm_pingpong -I 5 -v -S SIZES -t counter
0 efa 2 fi_rdm_pingpong -I 5 -v -S r:4048,20,4148
0 efa 2 fi_rdm_pingpong -I 5 -v -S r:17000,40,18000
0 efa 2 fi_rdm_pingpong -I 5 -v -j 0 -S r:0,4,64
0 efa 2 fi_rdm_pingpong -I 5 -v -c sread -S SIZES
0 efa,efa-direct 2 fi_rdm_pingpong -I 5 -v -c sread -S r:0,1024,4096
0 efa,efa-direct 2 fi_rdm_pingpong -I 5 -v -c fd -S r:0,1024,4096
0 efa-direct 2 fi_rdm_pingpong -I 5 -v -S r:0,1024,4096
0 efa-direct 2 fi_rdm_pingpong -I 5 -v -S r:0,1024,4096 -t counter
0 efa-direct 2 fi_rdm_pingpong -I 5 -v -j 0 -S r:0,4,32
0 efa 2 fi_rdm_pingpong -I 5 -v -S SIZES -M mr_local
0 efa 2 FI_EFA_MR_CACHE_ENABLE=0 fi_rdm_pingpong -I 5 -v -S SIZES -M mr_local
0 efa 2 fi_rdm_pingpong -d efa0-rdm -I 5 -S 1000
0 efa 2 FI_EFA_IFACE=efa0 fi_rdm_pingpong -I 5 -S 1000
0 efa 2 fi_rdm_tagged_pingpong -I 5 -v -S SIZES
0 efa 2 fi_rdm_tagged_pingpong -I 5 -v -S SIZES -U
0 efa 2 fi_rdm_cntr_pingpong -I 5 -S SIZES
0 efa 2 fi_rdm_tagged_bw -I 5 -v -S SIZES
0 efa 2 fi_rdm_tagged_bw -I 5 -v -S SIZES -U
0 efa 2 fi_rdm_tagged_bw -I 5 -v -S SIZES -t counter
0 efa 2 fi_rdm_tagged_bw -I 5 -v -j 0 -S r:0,4,64
0 efa 2 FI_EFA_TX_SIZE=64 fi_rdm_tagged_bw -W 128 -I 5 -v -S SIZES
0 efa 2 FI_EFA_RX_SIZE=64 fi_rdm_tagged_bw -W 128 -I 5 -v -S SIZES
0 efa 2 FI_EFA_TX_SIZE=43 FI_EFA_RX_SIZE=51 fi_rdm_tagged_bw -W 128 -I 5 -v -S SIZES
0 efa 2 FI_EFA_RECVWIN_SIZE=1 fi_rdm_tagged_bw -W 128 -I 5 -v -S SIZES
0 efa 2 fi_rdm_tagged_bw -w 0 --use-fi-more --sync-comp transmit_complete -I 5 -v -S r:0,4,64
0 efa 2 fi_rdm_atomic -I 5
0 efa 2 fi_rdm_atomic -I 5 -U
0 efa 2 fi_rdm_tagged_peek
0 efa 2 fi_rdm_multi_client -C 3 -I 3
0 efa,efa-direct 2 fi_rdm_bw_mt -g -n 8 --threading completion -I 5 -S 1024
0 efa,efa-direct 2 FI_EFA_FORK_SAFE=1 fi_rdm_bw -K -v -I 5 -S 1024
0 efa,efa-direct 2 RDMAV_FORK_SAFE=1 fi_rdm_bw -K -v -I 5 -S 1024
0 efa 2 fi_efa_implicit_av_test -L -c 5 -S 24756 -I 5 -v
0 efa 2 fi_efa_implicit_av_test -L -c 5 -S 24756 -X -I 5 -v
0 efa 2 FI_EFA_IMPLICIT_AV_SIZE=3 fi_efa_implicit_av_test -L -c 5 -S 1024 -I 5 -v
0 efa 2 fi_rma_bw -e rdm -o write -I 5 -v -S SIZES
0 efa 2 fi_rma_bw -e rdm -o read -I 5 -v -S SIZES
0 efa 2 fi_rma_bw -e rdm -o writedata -I 5 -v -S SIZES
0 efa 2 FI_EFA_TX_SIZE=64 FI_EFA_RX_SIZE=64 fi_rma_bw -e rdm -W 128 -o write -I 5 -v -S SIZES
0 efa 2 fi_rma_bw -e rdm -j 0 -o write -I 5 -v -S r:0,4,64
0 efa 2 fi_rma_bw -e rdm -o read -t counter -I 5 -v -S SIZES
0 efa 2 fi_rma_bw -e rdm -c sread -o writedata -I 5 -v -S SIZES
0 efa 2 fi_rma_bw -e rdm -W 1 -o read -I 2 -w 0 -v -S 67108864
0 efa 2 fi_rma_bw -e rdm -W 1 -o write -I 2 -w 0 -v -S 67108864
0 efa 2 fi_efa_rma_bw -e rdm --high-pps -o write -I 5 -v -S SIZES
0 efa 2 fi_efa_rma_bw -e rdm --post-list 16 -o writedata -I 5 -v -S SIZES
0 efa 2 fi_rma_pingpong -e rdm -o writedata -I 5 -v -S SIZES
0 efa 2 fi_rma_pingpong -e rdm -o read -I 5 -v -S SIZES
0 efa 2 fi_rma_pingpong -e rdm -o writedata -M mr_local -I 5 -v -S SIZES
0 efa,efa-direct 2 fi_efa_rnr_read_cq_error
0 efa 2 fi_efa_rnr_queue_resend -c 0 -S 1048576
0 efa 2 fi_efa_rnr_queue_resend -c 0 -o read -S 4
0 efa 2 fi_efa_rnr_queue_resend -c 0 -A read -S 4
0 efa 2 fi_efa_rnr_queue_resend -c 0 -U -S 4
0 efa 2 fi_efa_rnr_queue_resend -c 1 -S 4
0 efa 2 fi_efa_rnr_queue_resend -c 1 -T -S 4
0 efa 2 fi_efa_rnr_queue_resend -c 1 -S 16384
0 efa 2 fi_efa_rnr_queue_resend -c 1 -T -S 1048576
0 efa 2 fi_efa_rnr_queue_resend -c 1 -o write -S 4
0 efa 2 fi_efa_rnr_queue_resend -c 1 -o write -S 1048576
0 efa 2 fi_efa_rnr_queue_resend -c 1 -o writedata -S 4
0 efa 2 fi_efa_rnr_queue_resend -c 1 -o read -S 4
0 efa 2 fi_efa_rnr_queue_resend -c 1 -o read -S 1048576
0 efa 2 fi_efa_rnr_queue_resend -c 1 -A write -S 4
0 efa 2 fi_efa_rnr_queue_resend -c 1 -A read -S 4
0 efa 2 fi_efa_rnr_queue_resend -c 1 -A cswap -S 4
0 efa 2 fi_efa_rnr_queue_resend -c 1 -U -S 4
0 efa 2 fi_efa_rnr_queue_resend -c 1 -T -U -S 16384
0 efa 2 fi_efa_rnr_queue_resend -c 1 -U -S 1048576
0 efa 2 fi_efa_rnr_queue_resend -c 1 -o write -U -S 4
0 efa 2 fi_efa_rnr_queue_resend -c 1 -A write -U -S 4
0 efa 2 FI_EFA_RUNT_SIZE=65536 FI_EFA_INTER_MIN_READ_MESSAGE_SIZE=65536 fi_efa_runt_read_no_handshake -I 1 -v -S 262144
0 efa 2 FI_EFA_RUNT_SIZE=0 FI_EFA_INTER_MIN_READ_MESSAGE_SIZE=1000 fi_efa_runt_read_no_handshake -I 1 -v -S 1024
0 efa 2 fi_unexpected_msg -e rdm -M 1 -I 5 -v -S 1
0 efa 2 fi_unexpected_msg -e rdm -M 1024 -I 5 -v -S 9000
0 efa 2 fi_unexpected_msg -e rdm -M 2048 -I 5 -v -U -S 512
0 efa 2 fi_multi_recv -e rdm -I 5 -S 1024
0 efa 2 fi_multi_recv -e rdm -I 5 -S 8192
0 efa 2 fi_multi_ep -e rdm -S 256
0 efa 2 fi_multi_ep -e rdm -Q -A -S 256
0 efa 2 fi_efa_rdm_remote_exit_early -S 65536
0 efa 2 fi_efa_rdm_remote_exit_early -S 1048576
0 efa 2 fi_efa_rdm_remote_exit_early -o tagged -S 1048576
0 efa 2 fi_efa_rdm_remote_exit_early -o writedata -S 1048576
0 efa 2 fi_efa_rdm_remote_exit_early --post-rx -S 1048576
0 efa 2 fi_efa_multi_ep_stress -S 1024
0 efa 2 fi_efa_multi_ep_stress --remove-av -S 1024
0 efa 2 fi_efa_multi_ep_stress --op-type tagged -S 1024
0 efa 2 fi_efa_multi_ep_stress --op-type writedata -S 1024
0 efa 2 fi_efa_multi_ep_stress --receiver-workers 4 --shared-cq -S 1024
0 efa 2 fi_efa_multi_ep_stress --sender-workers 8 --receiver-workers 2 --shared-av --shared-cq -S 1024
0 efa 2 fi_efa_multi_ep_stress --sender-ep-cycles 5 -S 1024
0 efa 2 fi_mr_abort -I 1 -W 64 -N 4 -S 4096 -o read
0 efa 2 fi_mr_abort -I 1 -W 64 -N 4 -S 65536 -o write
0 efa 2 fi_av_xfer -e rdm
0 efa,efa-direct 2 fi_cq_data -e rdm -o senddata
0 efa 2 fi_cq_data -e rdm -o writedata
0 efa 2 fi_inject_test -e rdm -A inject -v -S 64
0 - 2 fi_dgram_pingpong -k -I 5
0 - 2 fi_dgram_pingpong -d efa0-dgrm -k -I 5 -S 1000
0 efa,efa-direct 1 fi_efa_info_test
0 efa,efa-direct 1 FI_EFA_IFACE=all fi_efa_info_test
0 efa,efa-direct 1 FI_EFA_IFACE=efa0,efa0 fi_efa_info_test
61 efa,efa-direct 1 FI_EFA_IFACE=r fi_efa_info_test
0 efa,efa-direct 1 fi_getinfo_test -s ::ffff:127.0.0.1 ::ffff:127.0.0.1
0 efa,efa-direct 1 fi_setopt_test
0 - 1 fi_efa_mmap_test
0 - 1 fi_mr_test
0 - 1 fi_mr_cache_evict
0 - 1 fi_cntr_test
0 - 1 fi_dom_test -n 2
0 - 1 fi_eq_test
0 - 1 sighandler_test

# The provider has no FI_RMA_EVENT (efa_rdm_ope_handle_send_completed), FI_TRIGGER, shared or scalable contexts.
61 - 2 fi_rdm_rma_event
61 - 2 fi_rdm_rma_trigger
61 - 2 fi_multi_mr -e rdm -V
61 - 2 fi_shared_ctx -e rdm
61 - 2 fi_scalable_ep
# FI_EP_DGRAM requires the mode FI_MSG_PREFIX (efa_prov_info.c), which fi_dgram lacks.
61 - 2 fi_dgram
# The address format is FI_ADDR_EFA, and the test requires FI_SOCKADDR.
61 - 1 fi_av_test -g 127.0.0.1 -n 1 -s 127.0.0.1
TABLE
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LD_LIBRARY_PATH=$prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PATH=$prefix/bin:$PATH
export FI_EFA_ENABLE_SHM_TRANSFER=0 # processes of one host otherwise use shared memory
export FI_HMEM=system
limit=${LIMIT:-120} sizes=l:16,4096,16384,131072,1048576
port=20000 run=0 failed=0

# run_test EXPECTED FABRIC PROCESSES COMMAND...
run_test() {
	local expected=$1 fabric=$2 processes=$3 got=0 pid=0
	shift 3
	local command=(env "$@" -p efa)
	[ "$fabric" = - ] || command+=(-f "$fabric")
	run=$((run + 1)) port=$((port + 1))
	: >"$work/server"
	if [ "$processes" = 2 ]; then
		timeout "$limit" "${command[@]}" -E=$port >"$work/server" 2>&1 &
		pid=$!
		for _ in {1..100}; do
			ss -Hltn "sport = $port" | grep -q . && break
			kill -0 $pid 2>/dev/null || break
			sleep 0.1
		done
		command+=(-E=$port 127.0.0.1)
	fi
	local start=$SECONDS
	timeout "$limit" "${command[@]}" >"$work/client" 2>&1 || got=$?
	if [ $pid != 0 ]; then
		local server=0
		if [ $got != 0 ]; then # the client may have failed because the server ends
			for _ in {1..20}; do
				kill -0 $pid 2>/dev/null || break
				sleep 0.1
			done
			kill $pid 2>/dev/null || true
		fi
		wait $pid || server=$?
		[ $server = 0 ] || [ $server = 143 ] || got=$server
	fi
	if [ $got = "$expected" ]; then
		[ -z "${VERBOSE:-}" ] || echo "passed in $((SECONDS - start)) s: $* ($fabric)"
		return
	fi
	failed=$((failed + 1))
	echo "failed: got $got, want $expected: $* ($fabric)" >&2
	tail -n 5 "$work/client" "$work/server" >&2
}

while read -r expected fabrics processes command; do
	[[ $expected = [0-9]* && $command =~ $pattern ]] || continue
	for fabric in ${fabrics//,/ }; do
		# shellcheck disable=SC2086 # the words of the command
		run_test "$expected" "$fabric" "$processes" ${command//SIZES/$sizes} </dev/null
	done
done < <(tests)
echo "$((run - failed)) of $run tests of fabtests had the expected result"
[ $failed = 0 ]
