#!/bin/sh
# Build the extension with sanitizers of g++ and run tests on it; any report of a sanitizer is a failure.
#
# sanitize.sh KIND FOLDER PYTHON [PYTEST ARGUMENTS] keeps all it needs in FOLDER: Python packages, the extension, a copy
# of the package. KIND is "address" (AddressSanitizer and UndefinedBehaviorSanitizer) or "thread" (ThreadSanitizer).
# The tests run on the widest instruction set, and those of kernels and indexes on each other one too.
#
# Leaks are not looked for: CPython keeps objects until the process ends, and they would hide ours.
set -eu
kind=$1 python=$3
mkdir -p "$2"
folder=$(cd "$2" && pwd)
shift 3
source=$(cd "$(dirname "$0")/../.." && pwd)
compiler=${CXX:-g++}

case $kind in
address) runtimes="libasan.so libstdc++.so" ;;
thread) runtimes="libtsan.so libstdc++.so" ;;
*) echo "sanitize: expected address or thread, got $kind" >&2 && exit 1 ;;
esac
command -v "$compiler" >/dev/null || { echo "sanitize: expected $compiler, got none (Debian: apt-get install g++)" >&2; exit 1; }
preload=
for runtime in $runtimes libubsan.so; do
    file=$("$compiler" -print-file-name=$runtime)
    test -e "$file" || { echo "sanitize: expected $runtime of $compiler, got none (it comes with g++)" >&2; exit 1; }
    test $runtime = libubsan.so || preload=$preload:$file
done

if ! test -e "$folder/packages-installed"; then
    "$python" -m venv "$folder/venv"
    "$folder/venv/bin/python" -m pip install --quiet nanobind cmake numpy safetensors threadpoolctl hypothesis pytest \
        pytest-xdist pillow scikit-learn  # no pytrec-eval, which frees with free() what it took with new[]
    touch "$folder/packages-installed"
fi
tools=$folder/venv/bin
"$tools/cmake" -S "$source" -B "$folder/extension" -DCMAKE_BUILD_TYPE=RelWithDebInfo "-DCMAKE_CXX_COMPILER=$compiler" \
    -DSTILLHASH_SANITIZE="$kind" "-DPython_EXECUTABLE=$tools/python" \
    "-Dnanobind_DIR=$("$tools/python" -m nanobind --cmake_dir)" >/dev/null
"$tools/cmake" --build "$folder/extension" --parallel 2 >/dev/null
rm -rf "$folder/site" "$folder/reports"
mkdir -p "$folder/site/stillhash-0.dist-info" "$folder/reports"
printf 'Metadata-Version: 2.1\nName: stillhash\nVersion: 0\n' >"$folder/site/stillhash-0.dist-info/METADATA"
cp -r "$source/src/stillhash" "$folder/site/stillhash"
rm -f "$folder"/site/stillhash/numeric/_native*.so
cp "$folder"/extension/_native*.so "$folder/site/stillhash/numeric/"

export PYTHONPATH="$folder/site" PYTHONDONTWRITEBYTECODE=1 PYTHONMALLOC=malloc OPENBLAS_NUM_THREADS=1
report="log_path=$folder/reports/$kind:abort_on_error=1"
export ASAN_OPTIONS="$report:detect_leaks=0:detect_stack_use_after_return=1:check_initialization_order=1"
export UBSAN_OPTIONS="$report:print_stacktrace=1"
export TSAN_OPTIONS="$report:exitcode=66:suppressions=$source/tests/support/thread_suppressions.txt"
# The runtimes must come first in the process, and Python itself does not have them.
on_sanitizers() {
    env LD_PRELOAD="${preload#:}" "$@"
}
status=0
run() { # LANES, then arguments of pytest
    export STILLHASH_LANES="$1"
    shift
    echo "$kind sanitizer, $STILLHASH_LANES:"
    on_sanitizers "$tools/python" -m pytest -p no:cacheprovider "$@" || status=1
}

cd "$source"
lanes=$(on_sanitizers "$tools/python" -c 'from stillhash.numeric.extension import native; print(*native.lanes())')
widest=${lanes%% *}
if test $kind = address; then
    # Not run: two tests that limit the address space, of which AddressSanitizer reserves terabytes.
    run "$widest" -n 2 --max-worker-restart 2 --deselect tests/numeric/test_threads.py::test_a_search_needs_no_thread_but_its_own \
        --deselect tests/collection/test_hostile_store.py::test_no_change_of_a_store_raises_anything_but_our_errors "$@"
    for narrower in ${lanes#"$widest"}; do
        run "$narrower" -n 2 --max-worker-restart 2 -m "not slow" tests/search tests/numeric/test_*kernel.py
    done
else
    for each in $lanes; do run "$each" "$@"; done
fi
for file in "$folder"/reports/*; do
    test -e "$file" || continue
    echo "$file:"
    head -n 60 "$file"
    status=1
done
exit $status
