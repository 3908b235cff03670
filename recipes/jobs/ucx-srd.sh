#!/usr/bin/env bash
# Runs ucx_perftest over the transport srd of UCX on an EFA device, without hardware. It needs UCX 1.19 or later, built in
# SOURCE with contrib/configure-devel and make, and efadv.h of rdma-core. The job of an Action or of GitLab CI is
#
#     recipes/jobs/ucx-srd.sh SOURCE
#
# With LOSS=1%, the device loses and reorders packets.
set -euo pipefail

src=$(realpath "${1:?usage: ucx-srd.sh SOURCE, a built source tree of UCX}")
perftest=$src/src/tools/perf/ucx_perftest
[ -e "$perftest" ] || { echo "$perftest does not exist: build UCX with contrib/configure-devel and make" >&2; exit 1; }
if [ -z "${UCX_SRD_INSIDE:-}" ]; then
	export UCX_SRD_INSIDE=1
	exec "${VERBENA:-verbena}" run --private --link efa0=127.0.0.1,personality=efa -- "$0" "$src"
fi
if [ -n "${LOSS:-}" ]; then
	"${VERBENA:-verbena}" fault add --dev efa0 --drop "$LOSS" >/dev/null
	"${VERBENA:-verbena}" fault add --dev efa0 --reorder "$LOSS" >/dev/null
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
port=20000 tests=0 failed=0

# test ARGUMENTS runs a server and a client.
test() {
	port=$((port + 1)) tests=$((tests + 1))
	timeout 60 "$perftest" -p $port "${server[@]}" >"$work/server" 2>&1 &
	local pid=$! ok=yes
	for _ in {1..100}; do
		ss -Hltn "sport = $port" | grep -q . && break
		sleep 0.1
	done
	timeout 60 "$perftest" 127.0.0.1 -p $port "$@" >"$work/client" 2>&1 || ok=no
	[ $ok = yes ] || kill $pid 2>/dev/null || true
	wait $pid || ok=no
	[ $ok = yes ] && return
	failed=$((failed + 1))
	echo "failed: ucx_perftest $*" >&2
	tail -n 5 "$work/client" "$work/server" >&2
}

# The transport alone.
server=(-d efa0:1 -x srd)
for layout in short bcopy zcopy; do
	for name in am_lat am_bw; do
		test "${server[@]}" -t $name -D $layout -s 8 -n 500 -w 10
	done
done
test "${server[@]}" -t am_bw -D zcopy -s 4000 -n 1000 -w 10
test "${server[@]}" -t get -D bcopy -s 4000 -n 500 -w 10
test "${server[@]}" -t get -D zcopy -s 100000 -n 200 -w 10

# The protocols above it.
export UCX_TLS=srd UCX_NET_DEVICES=efa0:1
server=()
for name in tag_lat tag_bw ucp_am_lat ucp_am_bw ucp_get ucp_put_lat stream_lat; do
	for size in 8 4096 100000 1000000; do
		test -t $name -s $size -n 200 -w 10
	done
done
echo "$((tests - failed)) of $tests tests of ucx_perftest passed"
[ $failed = 0 ]
