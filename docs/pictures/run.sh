# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# ./dev pictures: pictures of tools, from jobs that these programs run.

# pictures [draw|timeline|dashboard]...
cmd_pictures() {
    need pictures
    configure "$BUILD" -Dtests=false
    compile "$BUILD"
    [ $# -gt 0 ] || set -- draw timeline dashboard
    local name
    for name in "$@"; do
        say "docs/pictures/$name.py"
        /usr/bin/python3 "docs/pictures/$name.py" "$BUILD"
    done
}
