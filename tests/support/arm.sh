#!/bin/sh
# Cross-build the extension for 64-bit ARM and run the tests of kernels and indexes on it, by emulation (qemu-user).
#
# arm.sh FOLDER PYTHON [PYTEST ARGUMENTS] keeps all it needs in FOLDER: Debian's arm64 Python 3.11, wheels for it, the
# extension. PYTHON is of this machine. Emulation says whether answers are right, not how fast they are.
set -eu
mkdir -p "$1"
folder=$(cd "$1" && pwd) python=$2
shift 2
source=$(cd "$(dirname "$0")/../.." && pwd)
compiler=aarch64-linux-gnu-g++

if ! command -v $compiler >/dev/null; then
    if test "$(id -u)" = 0 && command -v apt-get >/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq g++-aarch64-linux-gnu >/dev/null
    else
        echo "test-arm: expected $compiler, got none (Debian: apt-get install g++-aarch64-linux-gnu)" >&2
        exit 1
    fi
fi
# Debian's arm64 Python with the libraries it needs: $folder/root has the files, $folder/python runs them.
for program in qemu-aarch64 dpkg-deb; do
    command -v $program >/dev/null && continue
    if test "$(id -u)" = 0 && command -v apt-get >/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq qemu-user >/dev/null
    else
        echo "expected $program, got none (Debian: apt-get install qemu-user)" >&2
        exit 1
    fi
done
command -v apt-get >/dev/null || { echo "expected apt-get, for Debian's arm64 Python, got none" >&2; exit 1; }

if ! test -e "$folder/python-unpacked"; then
    mkdir -p "$folder/apt/state/lists/partial" "$folder/apt/cache/archives/partial" "$folder/packages" "$folder/root"
    : >"$folder/apt/state/status"
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    echo "deb [signed-by=$keys] http://deb.debian.org/debian bookworm main" >"$folder/apt/sources.list"
    arm_apt() {  # with its own lists, so that the machine's stay as they are
        apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User="$(id -un)" \
            -o Dir::Etc::sourcelist="$folder/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
            -o Dir::State="$folder/apt/state" -o Dir::State::status="$folder/apt/state/status" \
            -o Dir::Cache="$folder/apt/cache" "$@"
    }
    arm_apt update
    (cd "$folder/packages" && arm_apt download "python3.11-minimal" "libpython3.11-minimal" \
        "libpython3.11-stdlib" "libpython3.11-dev" libexpat1 zlib1g libssl3 libffi8 libbz2-1.0 liblzma5 \
        libsqlite3-0 libuuid1 libzstd1 libc6 libgcc-s1 libstdc++6 libcrypt1)
    for package in "$folder"/packages/*.deb; do dpkg-deb -x "$package" "$folder/root"; done
    touch "$folder/python-unpacked"
fi
cat >"$folder/python" <<END
#!/bin/sh
exec qemu-aarch64 -L "$folder/root" "$folder/root/usr/bin/python3.11" "\$@"
END
chmod +x "$folder/python"

if ! test -e "$folder/wheels-unpacked"; then
    "$python" -m venv "$folder/tools"
    "$folder/tools/bin/python" -m pip install --quiet nanobind cmake
    "$folder/tools/bin/python" -m pip download --quiet --dest "$folder/wheels" --only-binary :all: --python-version 311 \
        --platform manylinux2014_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_28_aarch64 \
        numpy safetensors threadpoolctl hypothesis pytest pytest-xdist
    for wheel in "$folder"/wheels/*.whl; do "$python" -m zipfile -e "$wheel" "$folder/site"; done
    mkdir -p "$folder/site/stillhash-0.dist-info"
    printf 'Metadata-Version: 2.1\nName: stillhash\nVersion: 0\n' >"$folder/site/stillhash-0.dist-info/METADATA"
    touch "$folder/wheels-unpacked"
fi

tools=$folder/tools/bin
"$tools/cmake" -S "$source" -B "$folder/extension" -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux \
    -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=$compiler "-DCMAKE_CXX_FLAGS=-I$folder/root/usr/include" \
    "-DPython_EXECUTABLE=$folder/python" "-DPython_INCLUDE_DIR=$folder/root/usr/include/python3.11" \
    "-Dnanobind_DIR=$("$tools/python" -m nanobind --cmake_dir)" >/dev/null
"$tools/cmake" --build "$folder/extension" --parallel 2 >/dev/null
rm -rf "$folder/site/stillhash"
cp -r "$source/src/stillhash" "$folder/site/stillhash"
rm -f "$folder"/site/stillhash/numeric/_native*.so
cp "$folder"/extension/_native*.so "$folder/site/stillhash/numeric/"

export PYTHONPATH="$folder/site" PYTHONDONTWRITEBYTECODE=1
cd "$source"
"$folder/python" -c 'import stillhash; assert stillhash.info()["lanes"] == "neon", stillhash.info()'
# Emulated matrix products raise flags that stand for nothing.
exec "$folder/python" -m pytest -p no:cacheprovider --dist load --tx "2*popen//python=$folder/python" \
    -W "ignore:divide by zero encountered in matmul:RuntimeWarning" \
    -W "ignore:overflow encountered in matmul:RuntimeWarning" \
    -W "ignore:invalid value encountered in matmul:RuntimeWarning" "$@"
