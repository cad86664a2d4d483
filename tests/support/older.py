# SPDX-License-Identifier: Apache-2.0
"""The release before this one, from its commit, where the history of this tree has
it: its sources, a build folder of it, and its Debian packages."""
import os
import shutil
import subprocess

import trio as support

# Protocol 1, the last commit before version 2.
COMMIT = "980ebd940f016aeed90bd41b0abe4a605f33e882"
VERSION = "0.1.0"
FOLDER = support.BUILD / f"older-{COMMIT[:8]}"
TARGETS = ["daemons/psched/psched", "daemons/psserver/psserver",
           "daemons/psworker-agent/psworker-agent", "daemons/psctl/psctl",
           "tests/integration/integration_worker"]


def run(*words, **more):
    done = subprocess.run([str(w) for w in words], capture_output=True,
                          check=False, **more)
    assert done.returncode == 0, (words, done.stdout.decode()[-3000:],
                                  done.stderr.decode()[-3000:])
    return done.stdout


def missing():
    """Why there is no such release here; None: there is."""
    found = subprocess.run(
        ["git", "-C", str(support.SOURCE), "cat-file", "-e",
         f"{COMMIT}^{{commit}}"], capture_output=True, check=False)
    return (None if found.returncode == 0 else
            f"the history of this tree has no commit {COMMIT[:8]}")


def extract(to):
    """Its sources in that folder, unless they are there."""
    if not to.exists():
        part = to.with_name(f"{to.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        run("tar", "-x", "-C", part,
            input=run("git", "-C", support.SOURCE, "archive", COMMIT))
        part.rename(to)
    return to


def build():
    """Its build folder, with TARGETS."""
    source = extract(FOLDER / "source")
    folder = FOLDER / "build"
    env = {**os.environ, "CC": os.environ.get("CC", "cc")}
    if not (folder / "build.ninja").exists():
        run("meson", "setup", "-Dcuda=disabled", folder, source, env=env)
    run("ninja", "-C", folder, *TARGETS, env=env)
    return folder


def packages():
    """The folder with its Debian packages, without the module for GPUs. The build
    leaves files in the sources, so it has a copy of its own."""
    folder = FOLDER / "deb"
    if not any(folder.glob("*.changes")):
        source = extract(folder / "pskv")
        run("dpkg-buildpackage", "-us", "-uc", "-b", "-Ppkg.pskv.nocuda",
            cwd=source, env={**os.environ, "DEB_BUILD_OPTIONS":
                             f"parallel={os.cpu_count()} noautodbgsym "
                             + os.environ.get("DEB_BUILD_OPTIONS", "")})
    return folder
