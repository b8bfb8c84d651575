#!/bin/sh
# List all packages of an installed server, as CycloneDX JSON: create-sbom.sh DIST SBOM
# It needs cyclonedx-bom, and in DIST a wheel for this machine.
set -eu
dist=$1 sbom=$2
mkdir "$sbom"
environment=$(mktemp -d)
python3 -m venv "$environment"
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$(dirname "$0")/../src/stillhash/version.py")
"$environment/bin/python" -m pip install --quiet --find-links "$dist" --only-binary stillhash "stillhash[server]==$version"
"$environment/bin/python" -m pip uninstall --quiet --yes pip setuptools
cyclonedx-py environment "$environment/bin/python" --output-format JSON --output-file "$sbom/stillhash-$version.cdx.json"
rm -r "$environment"
