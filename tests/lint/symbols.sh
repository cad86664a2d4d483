#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The core decides and does nothing else: its archive may call the memory and
# string functions and the functions of lower layers that core-symbols.txt
# lists, and nothing that reads a clock, a file, a socket, the environment or
# another source of chance. A listed function of ours that the core calls no
# more fails, too.
#
#   symbols.sh NM CC ARCHIVE
set -eu
nm=$1
cc=$2
archive=$3
here=$(dirname "$0")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
list=$scratch/list
grep -v '^#' "$here/core-symbols.txt" >"$list"

# Names that an archive calls and does not define.
called() {
    "$nm" -u "$1" | awk '$1 == "U" || $1 == "w" { print $2 }' |
        sed 's/@.*//' | sort -u >"$scratch/undefined"
    "$nm" --defined-only "$1" | awk 'NF == 3 { print $3 }' |
        sort -u >"$scratch/defined"
    comm -23 "$scratch/undefined" "$scratch/defined" |
        grep -vE '^__(asan|ubsan|tsan|sanitizer|lsan|gcov|stack_chk|assert_fail)|^_(GLOBAL_OFFSET_TABLE_|ITM)' || true
}

# Those of them that the list does not allow.
forbidden() {
    called "$1" | grep -vxFf "$list" || true
}

# Functions of ours that the list allows and the archive does not call.
needless() {
    called "$1" >"$scratch/called"
    grep '^ps_' "$list" | grep -vxFf "$scratch/called" || true
}

found=$(forbidden "$archive")
if [ -n "$found" ]; then
    echo "the core calls what it must not:"
    echo "$found"
    exit 1
fi
found=$(needless "$archive")
if [ -n "$found" ]; then
    echo "the core does not call these any more, remove them from core-symbols.txt:"
    echo "$found"
    exit 1
fi

# Plant one forbidden call of each kind; each must be seen.
for call in 'clock_gettime(0, 0)' 'getenv("x")' 'send(0, 0, 0, 0)' 'rand()' \
    'open("x", 0)' 'pthread_create(0, 0, 0, 0)' 'ps_conn_send(0)'; do
    name=${call%%(*}
    printf 'int %s();\nint planted(void);\nint planted(void) { return (int)%s; }\n' \
        "$name" "$call" >"$scratch/planted.c"
    "$cc" -w -fno-builtin -c "$scratch/planted.c" -o "$scratch/planted.o"
    if [ -z "$(forbidden "$scratch/planted.o")" ]; then
        echo "a planted call of $name was not seen"
        exit 1
    fi
done
echo ps_planted >>"$list"
if [ "$(needless "$archive")" != ps_planted ]; then
    echo "a planted entry that nothing needs was not seen"
    exit 1
fi
