#!/bin/sh
# Install wheels for 64-bit ARM beside their dependencies and try them by emulation: arm_smoke.sh FOLDER PYTHON WHEEL ...
#
# FOLDER keeps Debian's arm64 Pythons (3.11 for cp311, 3.13 for the stable ABI). PYTHON is of this machine.
set -eu
mkdir -p "$1"
folder=$(cd "$1" && pwd) python=$2
shift 2
support=$(cd "$(dirname "$0")" && pwd)
for wheel in "$@"; do
    case $wheel in
        *-cp311-*) suite=bookworm version=3.11 ;;
        *-abi3-*) suite=trixie version=3.13 ;;
        *) echo "$wheel: expected a wheel for cp311 or abi3" >&2; exit 2 ;;
    esac
    "$support/arm_python.sh" "$folder/$suite" $suite $version
    site=$folder/$suite/site
    rm -rf "$site"
    "$python" -m pip install --quiet --target "$site" --only-binary :all: --python-version $version \
        --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux2014_aarch64 "$wheel"
    PYTHONPATH=$site PYTHONDONTWRITEBYTECODE=1 "$folder/$suite/python" -W ignore "$support/smoke.py"
done
