# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# ./dev bench: figures beside those of other systems.

cmd_bench() {
    need bench
    configure "$BUILD" -Dtests=true
    reconfigure "$BUILD" # For peers that were installed since.
    with_tests bench
    PSKV_BUILD_DIR="$PWD/$BUILD" /usr/bin/python3 tests/bench/bench.py "$@"
    if [ $# -eq 0 ]; then
        say "copies and system calls of a round of 64 MiB"
        /usr/bin/python3 tests/bench/copies.py "$PWD/$BUILD"
        say "codecs of gradients"
        "$BUILD/tests/bench/bench_grad_codec"
    fi
}
