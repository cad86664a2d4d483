# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# ./dev fuzz, and what the soaks of fuzz targets need.

# with_fuzz DIR [meson options]: builds the libFuzzer targets.
with_fuzz() {
    need lint
    CC=clang-14 configure "$@" -Dfuzz=enabled -Dtests=true -Db_lundef=false \
        -Dexamples=false
    compile "$1" fuzz-programs
}

with_fuzz_sanitizers() {
    with_fuzz build-fuzz -Db_sanitize=address,undefined
}

# Lines of the parsers that the corpora reach.
fuzz_coverage() {
    need lint
    # Its reports find sources by their whole paths.
    CC=clang-14 configure build-coverage -Dtests=true -Dexamples=false \
        -Dc_args="['-fprofile-instr-generate', '-fcoverage-mapping', '-fcoverage-prefix-map=..=$PWD']" \
        -Dc_link_args=-fprofile-instr-generate
    compile build-coverage fuzz-parsers
    python3 tests/fuzz/coverage.py build-coverage "$@"
}

# fuzz [SECONDS [TARGET...]]
# fuzz --coverage [--missed]
cmd_fuzz() {
    if [ "${1:-}" = --coverage ]; then
        shift
        fuzz_coverage "$@"
        return
    fi
    local seconds=${1:-60} name log status
    shift || true
    if ! [[ $seconds =~ ^[0-9]+$ ]]; then
        echo "dev fuzz: not a number of seconds: $seconds" >&2
        exit 2
    fi
    with_fuzz_sanitizers
    local targets=("$@")
    if [ ${#targets[@]} -eq 0 ]; then
        for name in tests/fuzz/corpus/*/; do
            targets+=("$(basename "$name")")
        done
    fi
    for name in "${targets[@]}"; do
        name=${name#fuzz_}
        say "fuzz_$name for $seconds s"
        log=build-fuzz/fuzz_$name.log
        mkdir -p "build-fuzz/corpus/$name"
        local extra=()
        [ -f build-fuzz/proto/messages.dict ] &&
            extra=(-dict=build-fuzz/proto/messages.dict)
        status=0
        "build-fuzz/tests/fuzz/fuzz_$name" -max_total_time="$seconds" \
            -timeout=60 -rss_limit_mb=2048 -print_final_stats=1 \
            "${extra[@]}" "build-fuzz/corpus/$name" \
            "tests/fuzz/corpus/$name" >"$log" 2>&1 || status=$?
        grep -E 'ERROR|SUMMARY|stat::number_of_executed|Done' "$log" || true
        if [ "$status" -ne 0 ]; then
            tail -n 5 "$log" >&2
            echo "dev: fuzz_$name ended with code $status: $log" >&2
            exit 1
        fi
    done
}
