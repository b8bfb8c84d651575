#!/bin/sh
# Create the secrets of compose.yaml in deploy/secrets, those that are missing: an admin key, a read key, a password of Grafana.
# The containers' users read the files, so these are readable; their folder is not, for others on this machine.
set -eu
folder=$(dirname "$0")/secrets
mkdir -p "$folder"
chmod 700 "$folder"
for name in admin_key read_key grafana_password; do
    if [ ! -e "$folder/$name" ]; then
        head -c 32 /dev/urandom | base64 | tr '+/' '-_' | tr -d '=\n' > "$folder/$name"
        chmod 444 "$folder/$name"
        echo "created $folder/$name"
    fi
done
