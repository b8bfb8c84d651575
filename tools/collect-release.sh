#!/bin/sh
# Copy the files to publish out of the artifacts of a build: collect-release.sh ARTIFACTS DIST
# Fail where one is missing: wheels of six platforms, with glibc and musl on Linux, and the source distribution.
set -eu
artifacts=$1 dist=$2
mkdir "$dist"
find "$artifacts" -name '*.whl' -exec cp -n {} "$dist" \;
find "$artifacts" -name '*.tar.gz' -exec cp -n {} "$dist" \;
for kind in 'manylinux_*_x86_64.whl' 'manylinux_*_aarch64.whl' 'musllinux_*_x86_64.whl' 'musllinux_*_aarch64.whl' \
    'macosx_*_arm64.whl' 'macosx_*_x86_64.whl' 'win_amd64.whl' 'win_arm64.whl' '.tar.gz'; do
    if [ -z "$(find "$dist" -name "stillhash-*$kind")" ]; then
        echo "dist: expected stillhash-*$kind, got none" >&2
        exit 1
    fi
done
ls -l "$dist"
