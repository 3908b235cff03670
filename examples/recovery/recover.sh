# recover.sh builds and runs recover.c, and fails if the program does not survive five resets of rxe0. docs/recovery.md
# describes the program.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
: > "$dir/out"
cc -Wall -o "$dir/recover" recover.c -libverbs
verbena run -- "$dir/recover" > "$dir/out" &
program=$!
trap 'kill $program 2>/dev/null || true; rm -rf "$dir"' EXIT
sessions() { [ "$(grep -c ^session "$dir/out")" -ge "$1" ]; }
resets() { verbena dev show --json | grep -q "\"resets\": $1,"; }
await() { for _ in $(seq 1200); do "$@" && return; sleep 0.05; done; echo "gave up: $*"; cat "$dir/out"; exit 1; }
n=1
for how in --at-wr=100 --at-wr=1 --at=registration --unreachable=300ms --at-wr=1000; do
	await sessions $n
	verbena dev reset rxe0 $how
	n=$((n + 1))
done
await sessions $n
await resets 6 # --at=registration resets twice, with a session in between if the program is fast
kill $program
wait $program
cat "$dir/out"
verbena dev show
