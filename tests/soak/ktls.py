#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""TLS of the kernel (kTLS), under Debian's kernel for virtual machines, which
has it: qemu boots that kernel with the programs of a build folder, without KVM.

    ktls.py BUILD

Runs the conformance suite of connections whose records the kernel protects, and
a job of sums over TLS between daemons of which each connection is by TCP; then
asks /proc/net/tls_stat and psctl. Prints what the machine prints; 1 if a step
fails. Takes two minutes, and needs apt, dpkg, kmod, cpio, busybox-static and
qemu-system-x86; the kernel (BUILD/ktls) is fetched once."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

KERNEL = "linux-image-cloud-amd64"
# Folders of modules that the machine has.
MODULES = ("kernel/net/tls", "kernel/crypto", "kernel/arch/x86/crypto")
PROGRAMS = ("daemons/psched/psched", "daemons/psserver/psserver",
            "daemons/psworker-agent/psworker-agent",
            "daemons/pslaunch/pslaunch", "daemons/psctl/psctl",
            "tests/integration/integration_worker",
            "tests/conformance/conn_suite")
GOOD = "ktls: all steps good"
PATIENCE = 900  # Seconds: AES is slow under emulation.

INIT = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /tmp
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs -o mode=1777 tmp /tmp
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
ip link set lo up
export HOME=/tmp PATH=/bin BUILD=@build@
sh -e /steps && echo "@good@"
poweroff -f
"""
# With the paths that the programs have in the build folder.
STEPS = """
uname -r
ulimit -n 65536
modprobe tls
for variant in ktls ktls_threads; do
    $BUILD/tests/conformance/conn_suite $variant > /tmp/suite 2>&1 ||
        { cat /tmp/suite; exit 1; }
    echo "conn_suite $variant: $(grep PASSED /tmp/suite)"
done
PSD_NETWORK_SAME_HOST=off $BUILD/daemons/pslaunch/pslaunch -n 2 -s 1 --private \\
    --tls on -- sh -e /job 2> /tmp/err || { cat /tmp/err; exit 1; }
cat /tmp/nodes
grep Tls /tmp/stat
[ "$(grep -c 'd+kTLS' /tmp/nodes)" -eq 3 ]
# Agent and server, and each of both and psched: three connections or more. With
# OpenSSL 3.0 the kernel seals, and OpenSSL opens.
[ "$(sed -n 's/TlsCurrTxSw *//p' /tmp/stat)" -ge 6 ]
[ "$(sed -n 's/TlsDecryptError *//p' /tmp/stat)" -eq 0 ]
"""
# In each training process. Rank 0 looks at the cluster before both leave.
JOB = """
worker=$BUILD/tests/integration/integration_worker
out=/tmp/out.$RANK
mkfifo /tmp/in.$RANK
$worker < /tmp/in.$RANK > $out &
exec 3> /tmp/in.$RANK
await() {
    while [ "$(grep -c . $out)" -lt $1 ]; do sleep 0.2; done
    if grep err $out; then exit 1; fi
}
echo open >&3
echo key small float32 1000 >&3
echo key large float32 1000000 >&3
echo rounds count 50 7 0 0 >&3
echo rounds count 10 7 0 1 >&3
await 5
if [ $RANK = 0 ]; then
    cat /proc/net/tls_stat > /tmp/stat
    at=$(sed -n 's/.*psctl -e \\(unix:[^ ]*\\) reaches.*/\\1/p' /tmp/err)
    $BUILD/daemons/psctl/psctl -e $at nodes > /tmp/nodes
fi
echo barrier >&3
echo close >&3
exec 3>&-
wait $!
cat $out
"""


def run(*words, **options):
    done = subprocess.run([str(w) for w in words], capture_output=True,
                          text=True, check=False, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}: {done.returncode}\n"
                 f"{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def unpacked_kernel(folder):
    """Files of Debian's kernel for virtual machines."""
    tree = folder / "kernel"
    if not tree.exists():
        folder.mkdir(exist_ok=True)
        part = folder / "part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(mode=0o755)
        found = re.search(r"Depends: (linux-image-\S+)",
                          run("apt-cache", "depends", KERNEL))
        if found is None:
            sys.exit(f"{KERNEL} is no package of this machine's archive")
        run("apt-get", "-o", "APT::Sandbox::User=root", "download", found[1],
            cwd=part)
        run("dpkg-deb", "-x", next(part.glob("*.deb")), part / "files")
        (part / "files").rename(tree)
        shutil.rmtree(part)
    return tree


def libraries_of(program):
    """Paths of the libraries and the interpreter that it is linked with."""
    return re.findall(r"(?:=> |^\s*)(/\S+) \(0x", run("ldd", program), re.M)


def copy_into(root, path):
    place = root / str(path).lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, place)


def make_root(root, kernel, build):
    """The files of the machine: programs and libraries at their paths here."""
    (root / "bin").mkdir()
    shutil.copy("/usr/bin/busybox", root / "bin")
    # The kernel runs it for the ciphers that TLS needs.
    (root / "sbin").mkdir()
    (root / "sbin/modprobe").symlink_to("/bin/busybox")
    for name in PROGRAMS:
        copy_into(root, build / name)
        for library in libraries_of(build / name):
            copy_into(root, library)
    modules = next((kernel / "lib/modules").iterdir())
    for name in MODULES:
        shutil.copytree(modules / name,
                        root / "lib/modules" / modules.name / name)
    for file in ("modules.order", "modules.builtin",
                 "modules.builtin.modinfo"):
        shutil.copy(modules / file, root / "lib/modules" / modules.name)
    run("depmod", "-b", root, modules.name)
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/passwd").write_text("root:x:0:0:root:/tmp:/bin/sh\n")
    init = root / "init"
    init.write_text(INIT.replace("@good@", GOOD).replace("@build@", str(build)))
    init.chmod(0o755)
    (root / "steps").write_text(STEPS)
    (root / "job").write_text(JOB)


def boot(kernel, archive):
    """Prints what the machine prints; True if it says that all was good."""
    image = next((kernel / "boot").glob("vmlinuz-*"))
    words = ("qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max",
             "-m", "2048", "-smp", "2", "-kernel", image, "-initrd", archive,
             "-append", "console=ttyS0 quiet panic=-1", "-nographic",
             "-no-reboot", "-nic", "none")
    good = False
    with subprocess.Popen(["timeout", str(PATIENCE), *map(str, words)],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          text=True, errors="replace") as machine:
        for line in machine.stdout:
            line = re.sub(r"\x1b(?:c|\[[?0-9;]*[a-zA-Z])", "", line).rstrip()
            good = good or line == GOOD
            if line:
                print(line, flush=True)
    return good


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: ktls.py BUILD")
    build = Path(sys.argv[1]).resolve()
    kernel = unpacked_kernel(build / "ktls")
    with tempfile.TemporaryDirectory(prefix="pskv-ktls-") as folder:
        root = Path(folder) / "root"
        root.mkdir(mode=0o755)
        make_root(root, kernel, build)
        archive = Path(folder) / "root.cpio"
        names = "\0".join(str(p.relative_to(root))
                          for p in [root, *sorted(root.rglob("*"))])
        with open(archive, "wb") as out:
            subprocess.run(["cpio", "--null", "-o", "-H", "newc", "--quiet"],
                           cwd=root, input=names.encode(), stdout=out,
                           check=True)
        good = boot(kernel, archive)
    if not good:
        sys.exit("ktls: a step has failed, or the time was up")


if __name__ == "__main__":
    os.umask(0o022)
    main()
