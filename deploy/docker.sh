#!/bin/sh
# Build the image if a container engine answers; else rehearse the Dockerfile without one.
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' src/stillhash/version.py)
for engine in docker podman; do
    if command -v $engine >/dev/null && $engine info >/dev/null 2>&1; then
        exec $engine build --build-arg "VERSION=$version" --tag "stillhash:$version" --tag stillhash:latest .
    fi
done
echo "no container engine answers: the Dockerfile is rehearsed instead (deploy/rehearse.py)"
exec "${PYTHON:-python3}" deploy/rehearse.py
