#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Debian packages and the wheel in a new minbase Debian, which has nothing
# that ./dev does not install itself, installs the packages there, and runs a job of
# theirs. Of this machine, it has the commit of the tree and what apt and pip need
# to reach their registries. Ends with 77 and the reason where there can be none.
#
#     minbase.sh FOLDER [COMMAND...]    COMMAND in place of building packages
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=$(realpath -m "$1")/root
shift
# That of this machine, or another one.
# shellcheck disable=SC2016 # apt expands.
mirror=${PSKV_DEBIAN_MIRROR:-$(apt-get indextargets \
    --format '$(CODENAME) $(REPO_URI)' 'Created-By: Packages' |
    sed -n 's/^bookworm //p' | head -n 1)}

skip() {
    echo "no minbase Debian: $*"
    exit 77
}

# Mounts of the root are gone with the name space.
# shellcheck disable=SC2016 # The inner shells expand.
inside() {
    unshare --mount --pid --fork --kill-child sh -euc '
        mount --make-rprivate /
        mount -t proc proc "$0/proc"
        mount --rbind /dev "$0/dev"
        mount -t tmpfs -o mode=1777 tmp "$0/dev/shm"
        exec chroot "$@"' "$root" "$root" env -i \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        HOME=/root LANG=C.UTF-8 "${pip[@]}" "$@"
}

[ "$(id -u)" = 0 ] || skip "only root can make one"
unshare --mount --pid --fork true 2>/dev/null ||
    skip "there are no name spaces of mounts and processes"
command -v debootstrap >/dev/null || skip "debootstrap is not installed"
[ -n "$mirror" ] || skip "apt knows no mirror of bookworm; PSKV_DEBIAN_MIRROR names one"
rm -rf --one-file-system "$root"
mkdir -p "$root"
# It leaves /proc mounted.
unshare --mount --propagation private \
    debootstrap --variant=minbase bookworm "$root" "$mirror" \
    >"$root/../debootstrap.log" 2>&1 ||
    skip "$mirror: $(tail -n 1 "$root/../debootstrap.log")"
mapfile -t pip < <(env | grep '^PIP_' | grep -v '^PIP_FIND_LINKS=' || true)
pip+=(PIP_CERT=/etc/ssl/registry.crt)
cp /etc/resolv.conf "$root/etc/"
echo "127.0.0.1 localhost" >"$root/etc/hosts"
grep -lsE '^Acquire' /etc/apt/apt.conf.d/* |
    xargs -r cp -t "$root/etc/apt/apt.conf.d"
if [ -f /etc/pip.conf ]; then
    cp /etc/pip.conf "$root/etc/"
fi
mkdir -p "$root/etc/ssl"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/registry.crt"
git clone -q --no-hardlinks . "$root/src/pskv"

if [ $# -gt 0 ]; then
    inside sh -euc 'cd /src/pskv && exec "$@"' sh "$@"
    exit
fi
# shellcheck disable=SC2016
inside sh -euc '
    cd /src/pskv
    ./dev package
    apt-get install -y -qq ./build-package/deb/*.deb >/dev/null
    dpkg-query -W -f "installed: \${Package} \${Version}\n" "*pskv*" "libpsclient*"
    cd /
    pslaunch -n 2 -s 1 -- python3 -c "
import pskv
with pskv.create(\"dist_sync\") as kv:
    kv.barrier()
    print(\"rank\", kv.rank, \"of\", kv.num_workers)" | sort >job.txt
    cat job.txt
    printf "[0] rank 0 of 2\n[1] rank 1 of 2\n" | cmp - job.txt'
