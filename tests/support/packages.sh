# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What ./dev installs. It asks before it uses the rights of root, unless root
# has called it where nobody can answer.

say() {
    printf '\033[1m%s\033[0m\n' "$*" >&2
}

# Shows lines that begin with "[" as progress: in place on a terminal, and one
# every ten seconds elsewhere, also where none comes. Other lines stay.
show_progress() {
    local line shown=$SECONDS in_place='' last='' rc
    while IFS= read -r -t 10 line || {
        rc=$?
        line=''
        [ "$rc" -gt 128 ]
    }; do
        case $line in
        '['*)
            last=$line
            if [ -t 2 ]; then
                in_place=$'\n'
                printf '\r\033[K%.79s' "$line" >&2
            fi
            ;;
        '' | 'ninja: Entering '* | 'ninja: no work '*) ;;
        *)
            printf '%s%s\n' "$in_place" "$line" >&2
            in_place=''
            ;;
        esac
        if [ ! -t 2 ] && [ -n "$last" ] && ((SECONDS - shown >= 10)); then
            shown=$SECONDS
            printf '%.100s\n' "$last" >&2
        fi
    done
    if [ -t 2 ]; then
        printf '%s' "$in_place" >&2
    elif [ -n "$last" ]; then
        printf '%.100s\n' "$last" >&2
    fi
}

# The one reader of the table. LISTS has the words of each list.
declare -A LISTS
read_table() {
    local name words list
    while read -r name words; do
        case $name in
        '#'* | '') ;;
        *:) LISTS[${name%:}]+=" $words" ;;
        *)
            for list in $words; do
                LISTS[$list]+=" $name"
            done
            ;;
        esac
    done <tests/support/packages.txt
}
read_table

# packages_of LIST...: their packages, one a line.
packages_of() {
    local list word
    for list in "$@"; do
        for word in ${LISTS[$list]}; do
            case $word in
            +*) packages_of "${word#+}" ;;
            */*) [ "${word#*/}" != "$(dpkg --print-architecture)" ] ||
                echo "${word%/*}" ;;
            *) echo "$word" ;;
            esac
        done
    done
}

# missing_of LIST...: those of them that are not installed.
missing_of() {
    comm -23 <(packages_of "$@" | sort -u) <(dpkg-query -W \
        -f '${db:Status-Status} ${Package}\n' | sed -n 's/^installed //p' |
        sort -u)
}

# Number and size of what apt would fetch; nothing if it does not know, as before
# the first update.
apt_plan() {
    { apt-get install --print-uris -y -qq --no-install-recommends \
        -o Debug::NoLocking=1 "$@" 2>/dev/null || true; } |
        awk '{ n++; size += $3 }
            END { if (n) printf ", %d with what they depend on, %.0f MB", n, size / 1e6 }'
}

# Lines of apt's status as progress; sed passes them at once.
apt_progress() {
    sed -u -n -E 's/^(dl|pm)status:.*:([0-9]+)\.[0-9]+:(.*)$/[\2 %] \3/p'
}

# without_services COMMAND: packages that the command installs start no service
# now; the tests start daemons of their own.
without_services() {
    local policy=/usr/sbin/policy-rc.d rc=0
    if [ -e "$policy" ]; then
        "$@"
        return
    fi
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
    "${as_root[@]}" chmod 755 "$policy"
    "$@" || rc=$?
    "${as_root[@]}" rm -f "$policy"
    return "$rc"
}

# may_install PLAN PACKAGE...: asks; fails where the answer is no, or where only
# somebody who has the rights of root could give it.
may_install() {
    local answer plan=$1
    shift
    if [ ! -t 0 ] || [ ! -t 2 ]; then
        [ "$(id -u)" = 0 ]
        return
    fi
    say "./dev needs $plan:"
    printf '%s\n' "$*" | fmt -w 76 | sed 's/^/    /' >&2
    if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
        return 1
    fi
    read -r -p "Install them${as_root:+ with sudo}? [Y/n] " answer
    case ${answer:-yes} in
    [yY]*) ;;
    *) return 1 ;;
    esac
}

# need LIST...: installs what of them is missing.
need() {
    local -a missing as_root=()
    local plan
    mapfile -t missing < <(missing_of "$@")
    if [ ${#missing[@]} -eq 0 ]; then
        return
    fi
    if [ "$(id -u)" = 0 ]; then
        apt-get update -qq
    else
        as_root=(sudo)
    fi
    plan="${#missing[@]} packages of Debian$(apt_plan "${missing[@]}")"
    if ! may_install "$plan" "${missing[@]}"; then
        echo "dev: needs $plan; as root: apt-get install" \
            "--no-install-recommends ${missing[*]}" >&2
        exit 1
    fi
    say "installing $plan: ${missing[*]}"
    [ "$(id -u)" = 0 ] || sudo apt-get update -qq
    without_services "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends \
        -o APT::Status-Fd=1 "${missing[@]}" | apt_progress | show_progress
    if [ -f "$BUILD/build.ninja" ]; then
        reconfigure "$BUILD"
    fi
}

# print_missing LIST...: what need would install, and how much that is.
print_missing() {
    local -a missing
    mapfile -t missing < <(missing_of "$@")
    if [ ${#missing[@]} -eq 0 ]; then
        echo "all packages are installed: $(packages_of "$@" | sort -u | xargs)"
        return
    fi
    printf '%s\n' "${missing[@]}"
    say "${#missing[@]} packages of Debian$(apt_plan "${missing[@]}")"
}

# with_venv NAME: a virtual environment in the build folder with what the list
# pip-NAME has; fails where it cannot be had.
with_venv() {
    local venv=$BUILD/$1
    local -a words
    if [ -e "$venv/ready" ]; then
        return
    fi
    need venv
    read -r -a words <<<"${LISTS[pip-$1]}"
    say "installing ${words[*]} in $venv"
    rm -rf "$venv"
    # PyPI's lines for each package are its progress.
    if /usr/bin/python3 -m venv "$venv" &&
        "$venv/bin/pip" install --disable-pip-version-check \
            --progress-bar off "${words[@]}" | sed -u 's/^/[pip] /' |
        show_progress; then
        touch "$venv/ready"
    else
        echo "dev: pip cannot install ${words[*]}: what needs it is skipped" >&2
        return 1
    fi
}

# packages [--print] [--all | LIST...]: of tests/support/packages.txt.
cmd_packages() {
    local is_printed='' list
    if [ "${1:-}" = --print ]; then
        is_printed=yes
        shift
    fi
    case ${1:-} in
    --all) set -- all ;;
    '') set -- test ;;
    esac
    for list in "$@"; do
        if [ -z "${LISTS[$list]:-}" ]; then
            echo "dev packages: no list '$list'; there are ${!LISTS[*]}" >&2
            exit 2
        fi
    done
    if [ -n "$is_printed" ]; then
        print_missing "$@"
    else
        need "$@"
    fi
}
