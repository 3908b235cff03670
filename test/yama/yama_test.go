//go:build interop

package yama

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The guest runs script as root. $1 is the binary, and $2 is a program without libibverbs. The rxe module of the
// kernel holds UDP port 4791 until the script removes the module.
const guestScript = `
set -u
rmmod rdma_rxe
ip link set lo up
echo 1 >/proc/sys/kernel/yama/ptrace_scope
export VERBENA_SOCKET=/tmp/yama.sock HOME=/nonexistent
cd /
user="setpriv --reuid 65534 --regid 65534 --clear-groups"
serve() {
	$user $1 serve --debug --link rxe0=127.0.0.1 $2 2>/tmp/service.log &
	service=$!
	while [ ! -S $VERBENA_SOCKET ]; do sleep 0.1; done
}
end() { kill $service; wait $service; }
check() { name=$1; shift; if "$@" >/tmp/out 2>&1; then echo "passed: $name"; else echo "failed: $name: $?"; cat /tmp/out; fi; }
# opened NAME BY COMMAND: it passes, and who has opened the memory of its last process
opened() {
	name=$1 by=$2; shift 2; before=$(wc -l </tmp/service.log)
	check "$name" "$@"
	tail -n +$((before + 1)) /tmp/service.log | grep 'memory of a process opened' | tail -n 1 | grep -q "by=$by" && echo "passed: $name by the $by"
}
serve $1 ""
opened transfer service $user $1 run -- $2 transfer
opened child launcher $user $1 run -- sh -c "$2 transfer; true"
opened changed launcher $user $1 run -- python3 -c "import ctypes, os; ctypes.CDLL(None).prctl(0x59616d61, 0, 0, 0, 0); os.execv('$2', ['$2', 'transfer'])"
opened thread launcher $user $1 run -- python3 -c "import os, threading; threading.Thread(target=os.execv, args=('$2', ['$2', 'transfer'])).start()"
check devices $user $1 run -- ibv_devices
$user $1 run -- ibv_rc_pingpong -d rxe0 -g 1 -n 50 >/dev/null & server=$!
for i in $(seq 100); do grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6 && break; sleep 0.1; done
check pingpong $user $1 run -- ibv_rc_pingpong -d rxe0 -g 1 -n 50 127.0.0.1
check server wait $server
check daemon $user $1 run -- sh -c "(setsid sh -c 'sleep 1; $2 transfer' &); sleep 5" && grep -q ok /tmp/out && echo "passed: its output"
check nothing-left sh -c "! $user $1 res show | grep -q rxe0"
end
check private $user $1 run --private --link rxe0=127.0.0.1 -- $2 transfer
# time COMMAND: the last line of figures of perftest, both ends on the same device
measure() {
	$user $1 run -- $3 -d rxe0 -x 1 -F >/dev/null 2>&1 & server=$!
	for i in $(seq 100); do grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6 && break; sleep 0.1; done
	echo "measured: $2: $3: $($user $1 run -- $3 -d rxe0 -x 1 -F 127.0.0.1 | grep -E '^ *[0-9]+ ' | tail -n 1)"
	wait $server
}
starts() { s=$(date +%s%N); for i in $(seq 20); do $user $1 run -- ibv_devices >/dev/null; done; echo "measured: $2: ms for verbena run -- ibv_devices: $((($(date +%s%N) - s) / 20000000))"; }
for way in "" --ask-launchers; do
	serve $1 "$way"
	name="by the service"; [ -z "$way" ] || name="by the launcher"
	starts $1 "$name"
	measure $1 "$name" "ib_send_lat -s 64 -n 2000"
	measure $1 "$name" "ib_write_bw -s 1048576 -n 300"
	measure $1 "$name" "ib_read_lat -s 1048576 -n 100"
	end
done
echo 2 >/proc/sys/kernel/yama/ptrace_scope
$user $1 run --private --link rxe0=127.0.0.1 -- true 2>&1 | grep -q 'ptrace_scope is 2: set it to 1 or 0' && echo "passed: refused"
`

func TestPtraceScope(t *testing.T) {
	verbena := os.Getenv("VERBENA")
	if verbena == "" {
		t.Fatal("VERBENA: got no path of the binary, want one: use make yama")
	}
	raw := filepath.Join(t.TempDir(), "rawverbs")
	for dir := filepath.Dir(raw); dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) {
		os.Chmod(dir, 0o755)
	}
	build := exec.Command("go", "build", "-o", raw, "verbena/test/rawverbs")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: got %v, want success:\n%s", err, out)
	}
	out, err := exec.Command("../interop/guest/boot", "-t", "600", "--", "sh", "-c", guestScript, "sh", verbena,
		raw).CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"transfer", "transfer by the service", "child", "child by the launcher",
		"changed", "changed by the launcher", "thread", "thread by the launcher", "private", "devices", "pingpong", "server",
		"daemon", "its output", "nothing-left", "refused"} {
		if !strings.Contains(string(out), "passed: "+what+"\n") {
			t.Errorf("check %q: got no pass, want one", what)
		}
	}
}
