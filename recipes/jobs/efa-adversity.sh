#!/usr/bin/env bash
# Runs libfabric's fi_pingpong and fabtests over its efa provider, between two EFA devices without hardware, while
# packets are lost, reordered, duplicated and corrupted, a peer dies, or a device is reset. PREFIX is the installation
# folder of libfabric and its fabtests, both configured with --enable-efa. The job of an Action or of GitLab CI is
#
#     recipes/jobs/efa-adversity.sh PREFIX [PATTERN]
#
# PATTERN selects lines such as "drop: fi_pingpong -S 64". LIMIT is the time for a program in seconds. With VERBOSE=1,
# the job prints each test.
set -euo pipefail

prefix=$(realpath "${1:?usage: efa-adversity.sh PREFIX [PATTERN], the installation folder of libfabric with fabtests}")
pattern=${2:-.}
[ -e "$prefix/bin/fi_efa_info_test" ] ||
	{ echo "$prefix/bin/fi_efa_info_test does not exist: build fabtests with --enable-efa" >&2; exit 1; }
verbena=${VERBENA:-verbena}
if [ -z "${ADVERSITY_INSIDE:-}" ]; then
	export ADVERSITY_INSIDE=1
	exec "$verbena" run --private --link efa0=127.0.0.1,personality=efa --link efa1=127.0.0.2,personality=efa \
		-- "$0" "$prefix" "$pattern"
fi

# Programs that check their data. They must succeed on a network that loses, repeats and changes packets. fi_pingpong
# with "-f efa" fails without faults: it sends a prefix of 176 bytes (FI_MSG_PREFIX), which libfabric 2.6 skips in the
# receive and does not remove from the message.
checked() {
	cat <<'TABLE'
fi_pingpong -e rdm -c -I 50 -S all
fi_rdm_pingpong -f efa-direct -v -I 50 -S r:0,1024,4096
fi_rdm_tagged_pingpong -f efa -v -I 5 -S l:16,4096,16384,131072,1048576
fi_rdm_tagged_pingpong -f efa -v -I 5 -c sread -S l:16,4096,16384,131072,1048576
fi_rdm_tagged_bw -f efa -v -I 5 -S l:16,4096,16384,131072,1048576
fi_rma_bw -f efa -e rdm -o write -v -I 5 -S l:16,4096,131072,1048576
fi_rma_bw -f efa -e rdm -o writedata -v -I 5 -S l:16,4096,131072,1048576
fi_rma_bw -f efa -e rdm -o read -v -I 5 -S l:16,4096,131072,1048576
fi_rdm_atomic -f efa -v -I 5
fi_unexpected_msg -f efa -e rdm -M 64 -v -I 5 -S 9000
fi_efa_rnr_queue_resend -f efa -c 1 -T -S 16384
TABLE
}

# Programs that send for a long time. While they run, a peer dies or a device is reset. With "-c sread", a message must
# not be injected: its error would go to a completion queue for which the program does not wait.
#
# Without "-f efa", libfabric uses efa-direct, which has only the receives of the program. If it posts its next requests
# after the reset, no request is outstanding, and libfabric does not read the fatal event. Resets are therefore not
# tested with these programs. On the fabric efa, receives are always outstanding, and get flush errors.
endless() {
	cat <<'TABLE'
fi_pingpong -e rdm -c -I 10000000 -S 64
fi_rdm_pingpong -f efa-direct -I 10000000 -S 4096
fi_rdm_tagged_pingpong -f efa -c sread -I 10000000 -S 4096
fi_rdm_tagged_pingpong -f efa -I 10000000 -S 1048576
fi_rdm_bw -f efa-direct -I 10000000 -S 4096
fi_rdm_tagged_bw -f efa -I 10000000 -S 16384
fi_rdm_tagged_bw -f efa -I 10000000 -S 1048576
fi_rma_bw -f efa -e rdm -o write -I 10000000 -S 65536
fi_rma_bw -f efa -e rdm -o writedata -I 10000000 -S 65536
fi_rma_bw -f efa -e rdm -o read -I 10000000 -S 65536
TABLE
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LD_LIBRARY_PATH=$prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PATH=$prefix/bin:$PATH
export FI_EFA_ENABLE_SHM_TRANSFER=0 # processes of one host otherwise use shared memory
export FI_HMEM=system
limit=${LIMIT:-60} port=20000 run=0 failed=0

# start COMMAND... starts the server on efa0 and the client on efa1.
start() {
	port=$((port + 1))
	local listen=(-E=$port) connect=(-E=$port)
	[ "$1" != fi_pingpong ] || listen=(-B "$port") connect=(-P "$port")
	"$@" -p efa -d efa0-rdm "${listen[@]}" >"$work/server" 2>&1 &
	server=$!
	for _ in {1..100}; do
		ss -Hltn "sport = $port" | grep -q . && break
		sleep 0.1
	done
	"$@" -p efa -d efa1-rdm "${connect[@]}" 127.0.0.1 >"$work/client" 2>&1 &
	client=$!
}

# runs PID reports whether the program has not ended.
runs() { [[ $(ps -o stat= -p "$1") = [!Z]* ]]; }

# both_run SECONDS waits until one of the programs ends, and reports whether none has ended in this time.
both_run() {
	for ((i = 0; i < $1 * 5; i++)); do
		{ runs $client && runs $server; } || return 1
		sleep 0.2
	done
}

# settle waits until the other program ends, too, for the time that a device waits for a peer, and more.
settle() {
	for _ in {1..60}; do
		runs $client || runs $server || return 0
		sleep 0.2
	done
}

# finish stops the programs, and sets code and waits for each: its exit code, and whether it had to be stopped.
finish() {
	local name pid
	for name in client server; do
		pid=${!name}
		waits[$name]=no
		runs "$pid" && waits[$name]=yes
	done
	for name in client server; do
		pid=${!name}
		code[$name]=0
		kill -KILL "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || code[$name]=$?
	done
}

# verdict WHAT REASON... counts a test. It has failed if there is a reason.
verdict() {
	run=$((run + 1))
	if [ $# = 1 ]; then
		[ -z "${VERBOSE:-}" ] || echo "passed: $1"
		return
	fi
	failed=$((failed + 1))
	echo "failed: $*" >&3
	tail -n 5 "$work/client" "$work/server" >&3
}

# succeeds WHAT COMMAND... expects success of both programs.
succeeds() {
	local what=$1 reason=()
	shift
	start "$@"
	if both_run "$limit" || ! settle; then
		reason+=("no end")
	fi
	finish
	for name in client server; do
		[ "${code[$name]}" = 0 ] || reason+=("$name: ${code[$name]}")
	done
	# fi_pingpong ends with a message in each direction. If the last acknowledgement is lost, the peer has no queue pair
	# any more when the message is repeated: ENOTCONN.
	[[ $1 != fi_pingpong || ${reason[*]} != *"er: 107" || ${#reason[@]} != 1 ]] || reason=()
	verdict "$what" "${reason[@]}"
}

# sent prints the number of packets that a device has sent.
sent() { "$verbena" stat show | awk -v dev="$1" '$1 == dev && $2 == "tx_pkts" { print $3 }'; }

# busy DEVICE reports whether a request of the device is in flight.
busy() { "$verbena" qp show | awk -v dev="$1" '$1 == dev && $9 > 0 { busy = 1 } END { exit !busy }'; }

# explained NAME reports whether a program has ended with an error that it has printed.
explained() {
	case ${code[$1]} in
	0 | 139) return 1 ;; # success, or a wrong access to memory
	134) grep -q 'EFA provider has encountered an internal error' "$work/$1" ;; # its end without an event queue
	*) [ -s "$work/$1" ] ;;
	esac
}

# ends WHAT EVENT COMMAND... expects that both programs end with an error after the event. SRD has no connections: a
# program that waits for a message, and has no request in flight, cannot detect the death of its peer. The test stops
# it.
ends() {
	local what=$1 event=$2 reason=() name before
	local -A device=([server]=efa0 [client]=efa1)
	shift 2
	before=$(sent efa1)
	start "$@"
	for _ in {1..100}; do
		[ $(($(sent efa1) - before)) -lt 500 ] || break
		sleep 0.1
	done
	{ runs $client && runs $server; } || reason+=("an end before the event")
	$event
	if both_run "$limit"; then
		reason+=("no end")
	fi
	settle
	local -A busy=()
	for name in client server; do
		! busy ${device[$name]} || busy[$name]=yes
	done
	finish
	for name in client server; do
		if [ "${waits[$name]}" = yes ]; then
			[ -z "${busy[$name]:-}" ] || reason+=("$name: requests in flight")
		elif [ "$event $name" != "kill_server server" ]; then
			explained $name || reason+=("$name: ${code[$name]}")
		fi
	done
	verdict "$what" "${reason[@]}"
	"$verbena" fault clear >/dev/null
}

declare -A code waits
exec 3>&2 # bash prints to the standard error that a program was aborted
while read -r kind rule; do
	# shellcheck disable=SC2086 # the words of the rule
	for seed in 1 2; do
		"$verbena" fault add --dev efa$((seed - 1)) $rule --seed $seed >/dev/null
	done
	while read -r command; do
		[[ "$kind: $command" =~ $pattern ]] || continue
		# shellcheck disable=SC2086 # the words of the command
		succeeds "$kind: $command" $command </dev/null 2>/dev/null
	done < <(checked)
	"$verbena" fault clear >/dev/null
done <<'TABLE'
drop --drop 1%
reorder --reorder 5%
duplicate --duplicate 5%
corrupt --corrupt 1%
all --drop 1% --reorder 1% --duplicate 1% --corrupt 1%
TABLE

stop_server() { "$verbena" fault add --dev efa0 --stop >/dev/null; }
kill_server() { kill -KILL $server; }
reset_server() { "$verbena" dev reset efa0 >/dev/null; }
reset_client() { "$verbena" dev reset efa1 >/dev/null; }
for event in stop_server kill_server reset_server reset_client; do
	while read -r command; do
		[[ "$event: $command" =~ $pattern ]] || continue
		[[ $event != reset_* || $command = *"-f efa "* ]] || continue
		# shellcheck disable=SC2086 # the words of the command
		ends "$event: $command" $event $command </dev/null 2>/dev/null
	done < <(endless)
	command="fi_rdm_tagged_pingpong -f efa -v -I 5"
	[[ "after $event: $command" =~ $pattern ]] || continue
	# shellcheck disable=SC2086 # the words of the command
	succeeds "after $event: $command" $command </dev/null 2>/dev/null
done
echo "$((run - failed)) of $run tests of libfabric had the expected result"
[ $failed = 0 ]
