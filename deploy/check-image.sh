#!/bin/sh
# Run an image as compose.yaml does, and wait until it is healthy: check-image.sh IMAGE
set -eu
image=$1
key=$(head -c 32 /dev/urandom | base64 | tr '+/' '-_' | tr -d '=\n')
container=$(docker run --detach --read-only --cap-drop ALL --security-opt no-new-privileges --tmpfs /tmp --env "STILLHASH_ADMIN_KEYS=$key" "$image")
trap 'docker logs "$container"; docker rm --force --volumes "$container" >/dev/null' EXIT
for _ in $(seq 60); do
    if docker exec "$container" python /opt/stillhash/deploy/healthcheck.py; then
        docker stop --time 60 "$container"
        test "$(docker inspect --format '{{.State.ExitCode}}' "$container")" = 0
        exit
    fi
    sleep 1
done
echo "the server did not become healthy" >&2
exit 1
