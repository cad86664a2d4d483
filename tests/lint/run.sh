# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# ./dev lint: rules of the tree, format, clang-tidy, shellcheck.

cmd_lint() {
    with_tests lint
    meson test -C "$BUILD" --suite lint --print-errorlogs
    say "clang-format"
    sources | grep -v '\.inc$' | xargs -P "$JOBS" -n 20 clang-format-14 \
        --dry-run -Werror
    # The analyzer's mode "deep" follows more paths, in four times the time.
    local mode=shallow option words=()
    [ "${1:-}" != --deep ] || mode=deep
    for option in -Xclang -analyzer-config -Xclang "mode=$mode"; do
        words+=("--extra-arg=$option")
    done
    say "clang-tidy, $mode analyzer"
    sources | grep -E '^(lib|proto|daemons)/.*\.c$' |
        xargs -P "$JOBS" -n 4 clang-tidy-14 -p "$BUILD" --quiet \
            "${words[@]}" --warnings-as-errors='*' 2>/dev/null
    say "shellcheck"
    shellcheck -x dev .ci/run
    git ls-files -- '*.sh' | xargs -r shellcheck -x
}
