//go:build interop

package yama

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// script runs in the guest, as root; $1 is the binary, $2 a program without libibverbs. UDP port 4791 is the kernel's
// own rxe's, until that is gone.
const script = `
set -u
rmmod rdma_rxe
ip link set lo up
echo 1 >/proc/sys/kernel/yama/ptrace_scope
export VERBENA_SOCKET=/tmp/yama.sock HOME=/nonexistent
cd /
user="setpriv --reuid 65534 --regid 65534 --clear-groups"
$user $1 serve --link rxe0=127.0.0.1 &
service=$!
while [ ! -S $VERBENA_SOCKET ]; do sleep 0.1; done
check() { name=$1; shift; if "$@" >/tmp/out 2>&1; then echo "passed: $name"; else echo "failed: $name: $?"; cat /tmp/out; fi; }
check transfer $user $1 run -- $2 transfer
check devices $user $1 run -- ibv_devices
$user $1 run -- ibv_rc_pingpong -d rxe0 -g 1 -n 50 >/dev/null & server=$!
for i in $(seq 100); do grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6 && break; sleep 0.1; done
check pingpong $user $1 run -- ibv_rc_pingpong -d rxe0 -g 1 -n 50 127.0.0.1
check server wait $server
check daemon $user $1 run -- sh -c "(setsid sh -c 'sleep 1; $2 transfer' &); sleep 5" && grep -q ok /tmp/out && echo "passed: its output"
check nothing-left sh -c "! $user $1 res show | grep -q rxe0"
kill $service; wait $service
echo 2 >/proc/sys/kernel/yama/ptrace_scope
$user $1 run --private --link rxe0=127.0.0.1 -- true 2>&1 | grep -q 'ptrace_scope is 2: set it to 1 or 0' && echo "passed: refused"
`

func TestPtraceScope(t *testing.T) {
	verbena := os.Getenv("VERBENA")
	if verbena == "" {
		t.Fatal("VERBENA must be the path of the binary: use make yama")
	}
	raw := filepath.Join(t.TempDir(), "rawverbs")
	for dir := filepath.Dir(raw); dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) {
		os.Chmod(dir, 0o755)
	}
	build := exec.Command("go", "build", "-o", raw, "verbena/test/rawverbs")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command("../interop/guest/boot", "-t", "600", "--", "sh", "-c", script, "sh", verbena, raw).CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"transfer", "devices", "pingpong", "server", "daemon", "its output", "nothing-left", "refused"} {
		if !strings.Contains(string(out), "passed: "+what+"\n") {
			t.Errorf("%s has not passed", what)
		}
	}
}
