# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# ./dev soak: long runs, each of them a program of this folder or of the tests.

# soak [SECONDS]: random simulator seeds until the time is up.
# soak psched [COUNT] [--part PART]: psched is killed, restarted and cut off.
# soak deaths [COUNT] [--seed N]: servers die and come back with their memory;
# --hosts: hosts are lost, and backups go on.
# soak together [SECONDS] [--seed N]: all faults together, on three hosts.
# soak network [--short] [--only PART]: loss, cut links, killed daemons.
# soak neighbours [SECONDS [KIND...]]: a job beside peers that ask for too much.
# soak liar [SECONDS]: a server that lies beside a job that checks its sums.
# soak diverged [COUNT [SEED]]: random programs that end by themselves, none of
# which may be called DIVERGED.
# soak fuzz [SECONDS [TARGET...]]: fuzz targets, from where the last run ended.
# soak fuzz --plain [--goal N] [SECONDS [TARGET...]]: without sanitizers.
# soak fuzz --merge [TARGET...]: the fewest inputs, and the sums, into the tree.
# soak fuzz --table: the sums over all runs.
# soak upstream --mxnet DIR --horovod DIR [--suite NAME]: other projects' tests.
# soak scale [--agents N]: a thousand agents, in virtual time and at one psched.
# soak nodes: two booted nodes with the packages of ./dev package deb. Needs root.
# soak ktls: TLS of the kernel, under Debian's kernel in qemu.
# soak mutants [SECONDS [OPTION...]]: changed conditions of lib/core that no test
# sees; goes on where the last run ended.
# soak model [NAME...]: every state of the models of tests/model.
cmd_soak() {
    local part=${1:-} more=("${@:2}")
    case $part in
    nodes)
        need nodes
        if [ -z "$(ls build-package/deb/*.deb 2>/dev/null)" ]; then
            . debian/package.sh
            cmd_package deb
        fi
        soak_program soak/nodes.py "${more[@]}"
        return
        ;;
    model)
        nice python3 tests/model/durability.py --all "${more[@]}"
        return
        ;;
    fuzz)
        . tests/fuzz/run.sh
        soak_fuzz "${more[@]}"
        return
        ;;
    esac
    with_tests soak
    case $part in
    psched) soak_program soak/psched_restart.py "${more[@]}" ;;
    network)
        soak_program soak/network.py "${more[@]}"
        soak_program soak/kills.py
        ;;
    deaths | together | neighbours | liar | scale) soak_program "soak/$part.py" "${more[@]}" ;;
    diverged)
        PSKV_DIVERGED_PROGRAMS=${2:-1000} PSKV_DIVERGED_SEED=${3:-$(date +%s)} \
            PSKV_BUILD_DIR="$PWD/$BUILD" /usr/bin/python3 -m pytest -q -s \
            -p no:cacheprovider tests/integration/deaths/test_diverged.py \
            -k programs_that_end
        ;;
    ktls)
        need ktls
        soak_program soak/ktls.py "$PWD/$BUILD"
        ;;
    upstream)
        with_all
        soak_program upstream/upstream.py "${more[@]}"
        ;;
    mutants)
        nice python3 tests/sim/mutants.py "${CC:-cc}" "$PWD" "$PWD/$BUILD" \
            --seconds "${2:-600}" "${@:3}"
        ;;
    *) soak_seeds "${1:-600}" ;;
    esac
}

# soak_program FILE [OPTION...]: a program of tests/ on the build.
soak_program() {
    PSKV_BUILD_DIR="$PWD/$BUILD" /usr/bin/python3 "tests/$1" "${@:2}"
}

soak_seeds() {
    local end=$((SECONDS + $1)) seed
    seed=$(date +%s)
    while [ $SECONDS -lt $end ]; do
        "$BUILD/tests/sim/sim_random" --jobs "$JOBS" --seed "$seed" \
            --count 500
        seed=$((seed + 500))
    done
}

# Sums and inputs of all builds are in one folder.
soak_fuzz() {
    local dir=build-fuzz
    case ${1:-} in
    --table)
        python3 tests/soak/fuzz.py build-fuzz/fuzz --table
        return
        ;;
    --plain)
        dir=build-fuzz-plain
        with_fuzz "$dir"
        ;;
    *)
        with_fuzz_sanitizers
        ;;
    esac
    nice python3 tests/soak/fuzz.py build-fuzz/fuzz "$dir" "$@"
}
