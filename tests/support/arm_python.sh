#!/bin/sh
# Unpack Debian's Python for 64-bit ARM, with the libraries it needs, and write a program that runs it by emulation.
#
# arm_python.sh FOLDER SUITE VERSION: FOLDER/root has the files, FOLDER/python runs them (qemu-user). SUITE and VERSION
# go together: bookworm 3.11, trixie 3.13. Nothing is installed on this machine but qemu-user, if this is root.
set -eu
mkdir -p "$1"
folder=$(cd "$1" && pwd) suite=$2 version=$3

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
    echo "deb [signed-by=$keys] http://deb.debian.org/debian $suite main" >"$folder/apt/sources.list"
    arm_apt() {  # with its own lists, so that the machine's stay as they are
        apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User="$(id -un)" \
            -o Dir::Etc::sourcelist="$folder/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
            -o Dir::State="$folder/apt/state" -o Dir::State::status="$folder/apt/state/status" \
            -o Dir::Cache="$folder/apt/cache" "$@"
    }
    arm_apt update
    case $suite in bookworm) ssl=libssl3 ;; *) ssl=libssl3t64 ;; esac
    (cd "$folder/packages" && arm_apt download "python$version-minimal" "libpython$version-minimal" \
        "libpython$version-stdlib" "libpython$version-dev" libexpat1 zlib1g $ssl libffi8 libbz2-1.0 liblzma5 \
        libsqlite3-0 libuuid1 libzstd1 libc6 libgcc-s1 libstdc++6 libcrypt1)
    for package in "$folder"/packages/*.deb; do dpkg-deb -x "$package" "$folder/root"; done
    # Since trixie the loader is in /usr/lib, with a link to it that belongs to no package.
    test -e "$folder/root/lib" || ln -s usr/lib "$folder/root/lib"
    touch "$folder/python-unpacked"
fi
cat >"$folder/python" <<END
#!/bin/sh
exec qemu-aarch64 -L "$folder/root" "$folder/root/usr/bin/python$version" "\$@"
END
chmod +x "$folder/python"
