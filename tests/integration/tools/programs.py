# SPDX-License-Identifier: Apache-2.0
"""Single daemons, as their operator starts them: none is left behind."""
import signal
import subprocess

import trio
from trio import PATIENCE, Deadline, clean_env, wait_for


def run(name, *args, env=None):
    """Runs a program to its end; returns code, standard output and error."""
    done = subprocess.run([trio.program(name), *args], env=env or clean_env(),
                          capture_output=True, text=True, timeout=PATIENCE,
                          check=False)
    return done.returncode, done.stdout, done.stderr


class Daemon(trio.Daemon):
    def __init__(self, program, label, folder, *args, env=None, ready=True):
        argv = [trio.program(program), *args]
        if program != "psworker-agent":
            argv.append(f"--port-file={folder / label}.port")
        super().__init__(label, argv, folder, env)
        if ready:
            self.wait_ready()

    def wait_ready(self):
        """Until it serves; fails with its log when it ends instead."""
        self.await_ready(Deadline())

    def wait_log(self, text):
        """Until the log holds `text`."""
        wait_for(lambda: text in self.text() or not self.alive(),
                 f"'{text}' in the log of {self.name}")
        assert text in self.text(), f"no '{text}': {self.text()}"

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self):
        """Its exit code."""
        return self.process.wait(PATIENCE)

    def stop(self):  # pylint: disable=arguments-differ
        """Ends it in good order; returns its exit code."""
        if self.alive():
            self.signal(signal.SIGTERM)
        return self.wait()

    def close(self):
        super().stop(Deadline(), kill=True)
        return self.crash()


class Daemons:
    """All daemons of one test."""

    def __init__(self, folder):
        self.folder = folder
        self.all = []

    def start(self, program, *args, **kwargs):
        daemon = Daemon(program, f"{program}-{len(self.all)}", self.folder,
                        *args, **kwargs)
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
