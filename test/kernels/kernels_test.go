//go:build interop

package kernels

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// debianSuites lists the releases of Debian whose kernels are tested, beginning with the oldest.
const debianSuites = "bullseye bookworm bookworm-backports trixie sid"

// The guest runs script as root. $1 is the binary, and $2 is a program of test/rawverbs. The rxe module of the
// kernel holds UDP port 4791 until the script removes the module.
const guestScript = `
echo "kernel: $(uname -r)"
rmmod rdma_rxe 2>/dev/null
ip link set lo up
export HOME=/nonexistent
cd /
$1 version --kernel | sed -n 's/^\(.*[^ ]\) *  *[0-9]*\.[0-9]*  *no .*/lacks: \1/p'
$1 version --kernel | sed -n 's/^/# /p'
result() { # NAME STATUS: /tmp/out says why
	if [ "$1" = signals ] && [ $2 = 3 ]; then echo "result: $user $1 = ok, but descriptors are left over"; return; fi
	if [ $2 = 0 ]; then echo "result: $user $1 = ok"; else echo "result: $user $1 = exit code $2: $(tail -n 1 /tmp/out)"; tail -n 5 /tmp/out; tail -n 3 $VERBENA_SOCKET.out; fi
}
one() { name=$1; shift; $as timeout 60 "$@" >/tmp/out 2>&1; result "$name" $?; }
# two NAME PORT CLIENT-ARGUMENT COMMAND: a server and a client
two() {
	name=$1 port=$2 host=$3; shift 3
	$as timeout 60 "$@" >/tmp/server 2>&1 & server=$!
	if [ $port != 0 ]; then $as $verbena wait --listen $port --timeout 20s; else sleep 3; fi
	$as timeout 60 "$@" $host >/tmp/out 2>&1; status=$?
	wait $server || { [ $status != 0 ] || { status=$?; cp /tmp/server /tmp/out; }; }
	result "$name" $status
}
verbena=$1 raw=$2
cat >/tmp/signals.py <<'END'
import os, signal, sys
signal.signal(signal.SIGALRM, lambda *a: None)
signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
for i in range(40):
    open('/sys/class/infiniband/rxe0/node_type').read()
    os.close(os.open('/dev/infiniband/uverbs0', os.O_RDWR))
signal.setitimer(signal.ITIMER_REAL, 0)
sys.exit(3 if len(os.listdir('/proc/self/fd')) > 4 else 0)
END
for user in root nobody; do
	as=; [ $user = root ] || as="setpriv --reuid 65534 --regid 65534 --clear-groups"
	export VERBENA_SOCKET=/tmp/$user.sock
	$as $verbena serve --debug --link rxe0=127.0.0.1 2>$VERBENA_SOCKET.out & service=$!
	$as $verbena wait
	run="$verbena run --"
	one ibv_devinfo $run ibv_devinfo -d rxe0
	two ibv_rc_pingpong 18515 127.0.0.1 $run ibv_rc_pingpong -d rxe0 -g 1 -n 100
	two "ibv_rc_pingpong -e" 18515 127.0.0.1 $run ibv_rc_pingpong -e -d rxe0 -g 1 -n 100
	two ib_write_bw 18515 127.0.0.1 $run ib_write_bw -d rxe0 -x 1 -F -s 65536 -n 100
	$as timeout 60 $run rping -s -C 20 -a 127.0.0.1 >/tmp/server 2>&1 & server=$!
	sleep 4
	one rping $run rping -c -C 20 -a 127.0.0.1
	kill $server 2>/dev/null; wait $server
	two "Go under run" 18515 127.0.0.1 $run $verbena pingpong -n 100
	two "Go on the socket" 18515 127.0.0.1 $verbena pingpong --service -n 100
	one signals $run /usr/bin/python3 /tmp/signals.py
	one fork $run sh -c "$raw transfer; $raw transfer"
	kill $service; wait $service
done
`

func TestKernels(t *testing.T) {
	verbena := os.Getenv("VERBENA")
	if verbena == "" {
		t.Fatal("VERBENA: got no path of the binary, want one: use make kernels")
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
	chosen := os.Getenv("SUITES")
	if chosen == "" {
		chosen = debianSuites
	}
	for _, suite := range strings.Fields(chosen) {
		t.Run(suite, func(t *testing.T) {
			args := []string{"-t", "600", "-r", suite, "--", "bash", "-c", guestScript, "bash", verbena, raw}
			out, err := exec.Command("../interop/guest/boot", args...).CombinedOutput()
			t.Logf("%s", out)
			if err != nil {
				t.Fatal(err)
			}
			r := parseRecord(suite, string(out))
			for _, user := range users {
				for _, p := range r.failedPrograms(user) {
					t.Errorf("%s as %s: got %s, want ok", p, user, r.Results[user+" "+p])
				}
			}
			if err := replaceRecord(r); err != nil {
				t.Error(err)
			}
		})
	}
}

// replaceRecord replaces the record of r's suite by r.
func replaceRecord(r record) error {
	list, err := readRecords()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	list = slices.DeleteFunc(list, func(old record) bool { return old.Suite == r.Suite })
	list = append(list, r)
	order := strings.Fields(debianSuites)
	slices.SortStableFunc(list, func(a, b record) int {
		return slices.Index(order, a.Suite) - slices.Index(order, b.Suite)
	})
	b, err := json.MarshalIndent(list, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(recordsFile, append(b, '\n'), 0o644)
}
