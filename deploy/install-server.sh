#!/bin/sh
# Install the server into an empty virtual environment: install-server.sh WHEELS PREFIX
# Nothing but the wheel and what the extra `server` needs: no pip, no compiler, no cache.
set -eu
wheels=$1 prefix=$2
python3 -m venv --without-pip "$prefix"
for wheel in "$wheels"/stillhash-*.whl; do
    python3 -m pip --python "$prefix/bin/python" install --quiet --no-cache-dir --no-compile "${wheel}[server]"
done
find "$prefix/lib" -type d -name tests -prune -exec rm -r {} +
# Bytecode now, since the file system is read-only later; it does not depend on the time of the build.
"$prefix/bin/python" -m compileall -q --invalidation-mode unchecked-hash "$prefix/lib"
"$prefix/bin/stillhash" info
