#!/bin/sh
# List all packages of an installed server, as CycloneDX JSON: create-sbom.sh DIST SBOM
# It needs cyclonedx-bom, and in DIST a wheel for this machine.
set -eu
dist=$1 sbom=$2
mkdir "$sbom"
environment=$(mktemp -d)
python3 -m venv "$environment"
"$environment/bin/python" -m pip install --quiet --find-links "$dist" --only-binary stillhash 'stillhash[server]'
version=$("$environment/bin/python" -c 'import stillhash; print(stillhash.__version__)')
"$environment/bin/python" -m pip uninstall --quiet --yes pip setuptools
cyclonedx-py environment "$environment/bin/python" --output-format JSON --output-file "$sbom/stillhash-$version.cdx.json"
rm -r "$environment"
