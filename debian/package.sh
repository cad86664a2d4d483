# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# ./dev package: Debian packages and a wheel, into build-package/.

# package [deb|wheel]: Debian packages and a wheel, into build-package/.
cmd_package() {
    mkdir -p build-package
    case ${1:-all} in
    deb) package_deb ;;
    wheel) package_wheel ;;
    all) package_deb && package_wheel ;;
    *)
        echo "dev: no kind of package '$1'; deb or wheel" >&2
        exit 2
        ;;
    esac
}

# logged FILE COMMAND: what it prints goes to the file, with ninja's progress in it
# also to standard error; the end of the file, too, where it fails.
logged() {
    "${@:2}" 2>&1 | tee "$1" |
        sed -u -n 's/^\(\[[0-9]*\/[0-9]*\]\).* \([^ ]*\)$/\1 \2/p' | show_progress || {
        tail -n 40 "$1" >&2
        exit 1
    }
}

# The build happens in a copy, because it leaves files in the tree.
package_deb() {
    need deb
    local copy=build-package/deb/pskv
    rm -rf build-package/deb
    mkdir -p "$copy"
    git ls-files -z | tar c --null -T - | tar x -C "$copy"
    say "building Debian packages"
    (cd "$copy" && DEB_BUILD_OPTIONS="parallel=$JOBS noautodbgsym" \
        logged ../build.log dpkg-buildpackage -us -uc -b)
    lintian --fail-on error,warning build-package/deb/*.changes
    ls build-package/deb/*.deb
}

# The libraries of the system that programs need go into the wheel; its tag
# names the least glibc that it runs with.
package_wheel() {
    need wheel
    local venv=build-package/wheel-venv out=build-package/wheel
    BUILD=build-package with_venv wheel-venv
    rm -rf "$out"
    say "building a wheel"
    PATH="$PWD/$venv/bin:$PATH" logged build-package/wheel.log \
        "$venv/bin/python" -m build --wheel --no-isolation --outdir "$out/built" .
    PATH="$PWD/$venv/bin:$PATH" "$venv/bin/auditwheel" repair \
        -w "$out" "$out"/built/*.whl
    # Every Python takes it: nothing inside is an extension module.
    "$venv/bin/wheel" tags --remove --python-tag py3 --abi-tag none \
        "$out"/*.whl
    rm -r "$out/built"
    "$venv/bin/auditwheel" show "$out"/*.whl
    ls "$out"/*.whl
    try_wheel "$out"/*.whl
}

# A job of two workers, with nothing but the wheel.
try_wheel() {
    local venv=build-package/try
    rm -rf "$venv"
    /usr/bin/python3 -m venv "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check "$1"
    say "running a job from the wheel"
    env -u PSKV_LIBRARY -u LD_LIBRARY_PATH -u PYTHONPATH \
        "$venv/bin/pslaunch" -n 2 -s 1 --private -- "$venv/bin/python" -c '
import pskv
with pskv.create("dist_sync") as kv:
    kv.barrier()
    print("rank", kv.rank, "of", kv.num_workers)'
    "$venv/bin/psctl" --version
    if [ -z "$(find "$venv" -name libpskv-cuda.so)" ]; then
        return
    fi
    say "loading the module for GPUs from the wheel"
    { PSKV_CUDA_DRIVER=/none/libcuda.so "$venv/bin/psserver" \
        -o compute.device=cuda -o scheduler.address=127.0.0.1 2>&1 || true; } |
        grep -F 'no CUDA driver: /none/libcuda.so: '
}
