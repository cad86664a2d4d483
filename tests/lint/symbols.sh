#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The core decides and does nothing else: its archive may call memory and
# string functions, our own lower layers, and nothing that reads a clock, a
# file, a socket, the environment or another source of chance.
#
#   symbols.sh NM CC ARCHIVE
set -eu
nm=$1
cc=$2
archive=$3
here=$(dirname "$0")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Undefined names of an archive that neither it defines nor the list allows.
strangers() {
    "$nm" -u "$1" | awk '$1 == "U" || $1 == "w" { print $2 }' |
        sed 's/@.*//' | sort -u >"$scratch/undefined"
    "$nm" --defined-only "$1" | awk 'NF == 3 { print $3 }' |
        sort -u >"$scratch/defined"
    comm -23 "$scratch/undefined" "$scratch/defined" |
        grep -vE '^ps_|^__(asan|ubsan|tsan|sanitizer|lsan|gcov|stack_chk|assert_fail)|^_(GLOBAL_OFFSET_TABLE_|ITM)' |
        grep -vxFf "$here/core-symbols.txt" || true
}

found=$(strangers "$archive")
if [ -n "$found" ]; then
    echo "the core calls what it must not:"
    echo "$found"
    exit 1
fi

# Plant one forbidden call of each kind; each must be seen.
for call in 'clock_gettime(0, 0)' 'getenv("x")' 'send(0, 0, 0, 0)' 'rand()' \
    'open("x", 0)' 'pthread_create(0, 0, 0, 0)'; do
    name=${call%%(*}
    printf 'int %s();\nint planted(void);\nint planted(void) { return (int)%s; }\n' \
        "$name" "$call" >"$scratch/planted.c"
    "$cc" -w -fno-builtin -c "$scratch/planted.c" -o "$scratch/planted.o"
    if [ -z "$(strangers "$scratch/planted.o")" ]; then
        echo "a planted call of $name was not seen"
        exit 1
    fi
done
