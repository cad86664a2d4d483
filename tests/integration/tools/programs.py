# SPDX-License-Identifier: Apache-2.0
"""Starts daemons for tests and sees to it that none is left behind."""

import os
import pathlib
import signal
import subprocess

from trio import PATIENCE, crash_of, wait_for, wait_ready

BUILD = pathlib.Path(os.environ.get("PSKV_BUILD_DIR", "build"))


def path_of(name):
    return str(BUILD / "daemons" / name / name)


def clean_env(**more):
    """Removes variables of the caller that would configure a daemon."""
    env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}
    for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"):
        if name in os.environ:
            env[name] = os.environ[name]
    env.update(more)
    return env


def run(name, *args, env=None):
    """Runs a program to its end; returns code, standard output and error."""
    done = subprocess.run([path_of(name), *args], env=env or clean_env(),
                          capture_output=True, text=True, timeout=PATIENCE,
                          check=False)
    return done.returncode, done.stdout, done.stderr


class Daemon:
    """A running daemon; its log goes to a file."""

    def __init__(self, name, folder, *args, env=None, ready=True, label=None):
        self.name = name
        self.log_path = folder / f"{label or name}.log"
        self.port_path = folder / f"{label or name}.port"
        ready_read, ready_write = os.pipe()
        command = [path_of(name), f"--ready-fd={ready_write}", *args]
        if name != "psworker-agent":
            command.append(f"--port-file={self.port_path}")
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                command, env=env or clean_env(), stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, pass_fds=[ready_write])
        os.close(ready_write)
        self.ready_fd = ready_read
        if ready:
            self.wait_ready()

    def wait_ready(self):
        """Until it serves; fails with its log when it ends instead."""
        wait_ready(f"{self.name} ready", [self.ready_fd])
        if os.read(self.ready_fd, 1) != b"\n":
            raise AssertionError(f"{self.name} ended: {self.log()}")

    @property
    def port(self):
        return int(self.port_path.read_text())

    def log(self):
        return self.log_path.read_text(errors="replace")

    def wait_log(self, text):
        """Until the log holds `text`."""
        wait_for(lambda: text in self.log() or self.process.poll() is not None,
                 f"'{text}' in the log of {self.name}")
        assert text in self.log(), f"no '{text}': {self.log()}"

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self):
        """Its exit code."""
        return self.process.wait(PATIENCE)

    def stop(self):
        """Ends it in good order; returns its exit code."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.wait()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.ready_fd)
        return crash_of(self.name, self.process.returncode, self.log())


class Daemons:
    """All daemons of one test."""

    def __init__(self, folder):
        self.folder = folder
        self.all = []

    def start(self, name, *args, **kwargs):
        kwargs.setdefault("label", f"{name}-{len(self.all)}")
        daemon = Daemon(name, self.folder, *args, **kwargs)
        self.all.append(daemon)
        return daemon

    def psched(self, *args, **kwargs):
        return self.start("psched", "-o", "listen.port=0", *args, **kwargs)

    def psserver(self, sched, *args, **kwargs):
        return self.start("psserver", f"--sched=127.0.0.1:{sched}", *args,
                          **kwargs)

    def agent(self, sched, *args, **kwargs):
        path = self.folder / f"agent-{len(self.all)}.sock"
        daemon = self.start("psworker-agent", f"--sched=127.0.0.1:{sched}",
                            "-o", f"client.socket={path}", *args, **kwargs)
        daemon.socket = path
        return daemon

    def close(self):
        crashes = [daemon.close() for daemon in reversed(self.all)]
        assert not any(crashes), "\n".join(crashes)
