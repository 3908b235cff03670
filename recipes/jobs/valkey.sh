#!/usr/bin/env bash
# Runs valkey's own test of connections over RDMA (tests/rdma/run.py) without hardware. SOURCE is a source tree of valkey
# 8.1 or later, built with
#
#     make BUILD_RDMA=module
#
# The test needs gcc, librdmacm-dev, libibverbs-dev and python3-netifaces. The job of an Action or of GitLab CI is
#
#     recipes/jobs/valkey.sh SOURCE
set -euo pipefail

src=$(realpath "${1:?usage: valkey.sh SOURCE, a built source tree of valkey}")
for file in tests/rdma/run.py src/valkey-server src/valkey-rdma.so; do
	[ -e "$src/$file" ] || { echo "$src has no $file: build valkey with make BUILD_RDMA=module" >&2; exit 1; }
done
# The interpreter of a package manager has no module netifaces of the distribution.
python=python3
for p in python3 /usr/bin/python3; do
	"$p" -c 'import netifaces' 2>/dev/null && python=$p && break
done
"$python" -c 'import netifaces' || { echo "python3 has no module netifaces: install python3-netifaces" >&2; exit 1; }
exec "${VERBENA:-verbena}" run --private -- "$python" "$src/tests/rdma/run.py"
