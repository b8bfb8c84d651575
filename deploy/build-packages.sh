#!/bin/sh
# Install the compiler that the wheel needs. Run by the Dockerfile, as root.
set -eu
apt-get update
apt-get install --yes --no-install-recommends g++
rm -rf /var/lib/apt/lists/*
