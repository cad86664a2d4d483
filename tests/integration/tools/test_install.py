# SPDX-License-Identifier: Apache-2.0
"""What `meson install` puts into a folder works from there: programs start,
Python finds the library, and a job runs."""
import json
import shutil
import subprocess
from pathlib import Path

import pytest
import trio as support

READY = support.limit(60)


def run(*words, **env):
    return subprocess.run(words, capture_output=True, text=True, check=False,
                          timeout=READY, cwd="/", env=support.clean_env(**env))


class Installed:
    """Installed files, by the ends of their paths."""

    def __init__(self, folder):
        done = run("meson", "install", "-C", str(support.BUILD),
                   "--no-rebuild", "--quiet", "--destdir", str(folder))
        assert done.returncode == 0, done.stderr
        targets = json.loads(run("meson", "introspect", "--installed",
                                 str(support.BUILD)).stdout)
        self.folder = folder
        self.paths = [Path(p) for p in targets.values()]
        self.library = self.find("libpsclient.so.0.2.0")

    def find(self, name):
        """The path without the folder, as in a package."""
        return next(p for p in self.paths if p.name == name)

    def at(self, path):
        return str(self.folder / path.relative_to("/"))

    def run(self, *words):
        """The folder is not the prefix that programs were linked for."""
        return run(*words, LD_LIBRARY_PATH=self.at(self.library.parent))


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    if shutil.which("meson") is None:
        pytest.skip("meson is not installed")
    return Installed(tmp_path_factory.mktemp("install"))


def test_installed_programs_find_the_library(installed):
    """Where the system's linker does not look, a program names the folder."""
    said = run("readelf", "-d", installed.at(installed.find("psctl"))).stdout
    paths = [line.partition("[")[2].rstrip("]") for line in said.split("\n")
             if "RUNPATH" in line or "RPATH" in line]
    folder = installed.library.parent
    if str(folder).startswith(("/usr/lib", "/usr/local/lib")):
        assert paths == []
    else:
        assert paths == [str(folder)]


@pytest.mark.parametrize("name", ["psctl", "pslaunch", "psched", "psserver",
                                  "psworker-agent"])
def test_installed_programs_start(installed, name):
    done = installed.run(installed.at(installed.find(name)), "--version")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(name)


def test_installed_python_finds_the_library(installed):
    package = installed.at(installed.find("pskv"))
    done = run("/usr/bin/python3", "-B", "-c",
               "import pskv._lib; print(pskv._lib.load()._name)",
               PYTHONPATH=str(Path(package).parent))
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).resolve() == \
        Path(installed.at(installed.library)).resolve()


@pytest.mark.parametrize("folder", ["lib", "lib64", "lib/x86_64-linux-gnu"])
def test_python_finds_the_library_of_its_prefix(installed, tmp_path, folder):
    """Wherever a system has libraries beside lib/python3."""
    package = tmp_path / "lib/python3/site-packages/pskv"
    shutil.copytree(installed.at(installed.find("pskv")), package)
    library = tmp_path / folder / "libpsclient.so.0"
    library.parent.mkdir(exist_ok=True)
    shutil.copy(installed.at(installed.library), library)
    done = run("/usr/bin/python3", "-B", "-c",
               "import pskv._lib; print(pskv._lib.load()._name)",
               PYTHONPATH=str(package.parent))
    assert (done.returncode, done.stdout.strip()) == (0, str(library)), \
        done.stderr


def test_installed_programs_run_a_job(installed):
    package = installed.at(installed.find("pskv"))
    done = installed.run(
        installed.at(installed.find("pslaunch")), "-n", "2", "-s", "1",
        "--private", "--env", f"PYTHONPATH={Path(package).parent}", "--",
        "/usr/bin/python3", "-B", "-c",
        "import pskv; kv = pskv.create(); kv.barrier(); print('rank', kv.rank);"
        " kv.close()")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")[:2]) == ["[0] rank 0", "[1] rank 1"]
