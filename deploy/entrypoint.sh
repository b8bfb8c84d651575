#!/bin/sh
# Run stillhash in a container: entrypoint.sh serve ... | any other command of stillhash.
# entrypoint.sh --prepare DATA UID creates the folder of the data, when the image is built.
set -eu

if [ "$1" = --prepare ]; then
    install -d -o "$3" -g "$3" -m 0700 "$2" "$2/collections" "$2/snapshots"
    exit
fi

# Keys from secrets: STILLHASH_ADMIN_KEYS_FILE=/run/secrets/admin_key is as STILLHASH_ADMIN_KEYS with its content.
for role in READ FEEDBACK WRITE ADMIN; do
    eval "file=\${STILLHASH_${role}_KEYS_FILE:-}"
    if [ -n "$file" ]; then
        keys=$(cat "$file")
        export "STILLHASH_${role}_KEYS=$keys"
    fi
done

if [ "$1" = serve ]; then
    mkdir -p /data/collections /data/snapshots # a folder of the host is empty at first
    if [ -e /data/keys ]; then                 # of `stillhash keys add /data/keys`
        set -- "$@" --keys /data/keys
    fi
fi
exec stillhash "$@"
