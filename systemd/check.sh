#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Units that systemd takes without a word, with a sandbox that stays tight.
#
#   check.sh SYSTEMD-ANALYZE FOLDER
set -eu
analyze=$1
folder=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

failed=0
for unit in psched psserver psworker-agent; do
    # A program has to exist to be verified; this one always does.
    sed "s|^ExecStart=.*|ExecStart=/bin/true|" \
        "$folder/$unit.service" >"$scratch/$unit.service"
    if ! "$analyze" verify --man=no "$scratch/$unit.service" \
        >"$scratch/out" 2>&1 || [ -s "$scratch/out" ]; then
        echo "$unit.service:"
        cat "$scratch/out"
        failed=1
    fi
    if grep -Eq '^(After|Wants|Requires)=.*network-online' \
        "$folder/$unit.service"; then
        echo "$unit.service delays a host that has loopback alone"
        failed=1
    fi
    # In tenths; a unit without a sandbox has 96.
    if ! "$analyze" security --offline=true --threshold=20 \
        "$scratch/$unit.service" >"$scratch/out" 2>&1; then
        echo "$unit.service is exposed too much:"
        grep -v "✓" "$scratch/out"
        failed=1
    fi
done
if command -v systemd-sysusers >/dev/null; then
    systemd-sysusers --dry-run "$folder/pskv.sysusers" >/dev/null || failed=1
fi
exit $failed
