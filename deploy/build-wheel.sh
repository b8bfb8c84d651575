#!/bin/sh
# Build the wheel: build-wheel.sh SOURCE WHEELS VERSION. It must have this version.
set -eu
source=$1 wheels=$2 version=$3
STILLHASH_REQUIRE_EXTENSION=1 python3 -m pip wheel --quiet --no-cache-dir --no-deps --wheel-dir "$wheels" "$source"
for wheel in "$wheels"/stillhash-*.whl; do
    case $wheel in
        */stillhash-"$version"-*) echo "built $wheel" ;;
        *) echo "version: expected $version, got $wheel" >&2; exit 2 ;;
    esac
done
