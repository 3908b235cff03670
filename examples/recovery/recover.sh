# recover.sh builds recover.c, runs it, and fails if it does not survive five resets of rxe0. docs/recovery.md describes it.
set -eu
cc -Wall -o recover recover.c -libverbs
verbena run -- ./recover > out &
program=$!
trap 'kill $program 2>/dev/null || true' EXIT
sessions() { [ "$(grep -c ^session out)" -ge "$1" ]; }
resets() { verbena dev show --json | grep -q "\"resets\": $1,"; }
await() { for _ in $(seq 1200); do "$@" && return; sleep 0.05; done; echo "gave up: $*"; cat out; exit 1; }
n=1
for how in --at-wr=100 --at-wr=1 --at=registration --unreachable=300ms --at-wr=1000; do
	await sessions $n
	verbena dev reset rxe0 $how
	n=$((n + 1))
done
await sessions $n
await resets 6 # that at registration comes twice, with a session between them if the program is fast
kill $program
wait $program
cat out
verbena dev show
