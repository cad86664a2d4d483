#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Units that systemd accepts without a message, with a sandbox whose exposure
# stays within its limit, and whose comments name each point that is left.
#
#   check.sh SYSTEMD-ANALYZE FOLDER
set -eu
analyze=$1
folder=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

failed=0
for unit in psched psserver psserver@ psworker-agent; do
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
    case $unit in
    psworker-agent) threshold=20 ;;
    *) threshold=12 ;;
    esac
    if ! "$analyze" security --offline=true --threshold=$threshold \
        "$scratch/$unit.service" >"$scratch/out" 2>&1; then
        echo "$unit.service is exposed too much:"
        grep -v "✓" "$scratch/out"
        failed=1
    fi
    # Lines "✗ NAME= description exposure" of the table; AF_... is in brackets.
    sed -n 's/^✗ \([^ ]*\).*/\1/p' "$scratch/out" >"$scratch/points"
    while read -r point; do
        case $point in
        *AF_UNIX*) name=AF_UNIX ;;
        *AF_*) name=AF_INET ;;
        *) name=${point%%=*}= ;;
        esac
        if ! grep -q "^#   $name" "$folder/$unit.service"; then
            echo "$unit.service does not say why it leaves $point"
            failed=1
        fi
    done <"$scratch/points"
done
cp "$folder/psched.socket" "$scratch/"
if ! "$analyze" verify --man=no "$scratch/psched.socket" \
    >"$scratch/out" 2>&1 || [ -s "$scratch/out" ]; then
    echo "psched.socket:"
    cat "$scratch/out"
    failed=1
fi
if command -v systemd-sysusers >/dev/null; then
    systemd-sysusers --dry-run "$folder/pskv.sysusers" >/dev/null || failed=1
fi
exit $failed
