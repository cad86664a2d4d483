# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# ./dev docs: the documents as a site.

# docs [serve]: the documents as a site, into build/docs-site/site. A link that
# leads nowhere, and anything that a page would load from elsewhere, is an error.
# The search needs a server, which "serve" is, on loopback.
# Ends with 77 where the renderer of the site cannot be had.
cmd_docs() {
    local out=$BUILD/docs-site venv=$BUILD/docs-venv
    /usr/bin/python3 docs/site.py . --check
    need docs
    if ! PIP_RETRIES=1 with_venv docs-venv; then
        echo "dev: no site; the links in the sources are good" >&2
        exit 77
    fi
    rm -rf "$out"
    mkdir -p "$out"
    /usr/bin/python3 docs/site.py . --stage "$out"
    # With --quiet, mkdocs would not count warnings.
    NO_MKDOCS_2_WARNING=1 "$venv/bin/mkdocs" build --strict \
        --config-file "$out/mkdocs.yml" >"$out/log" 2>&1 || {
        cat "$out/log" >&2
        exit 1
    }
    /usr/bin/python3 docs/site.py --links "$out/site"
    say "open $out/site/index.html"
    if [ "${1:-}" = serve ]; then
        /usr/bin/python3 -m http.server --bind 127.0.0.1 \
            --directory "$out/site" "${2:-8000}"
    fi
}
