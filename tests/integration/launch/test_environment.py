# SPDX-License-Identifier: Apache-2.0
"""Variables of other systems: a job started only by DMLC_*, and the meaning of
each name."""
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

import trio as harness
from trio import LIBRARY, PACKAGE, SOURCE

TABLE = (SOURCE / "docs" / "environment.md").read_text()


NOBODY = 65534


def effective(program, **env):
    """Options of a daemon as {path: (value, where it came from)}."""
    out = subprocess.run(
        [harness.program(program), "--print-config"],
        env=harness.clean_env(**env), text=True, check=True,
        stdout=subprocess.PIPE).stdout
    found = {}
    sections = []
    for line in out.splitlines():
        m = re.match(r"( *)([a-z_]+):(?: ([^#]*?))?(?: +# (.*))?$", line)
        if m is None:
            continue
        depth = len(m[1]) // 2
        sections[depth:] = [m[2]]
        found[".".join(sections)] = ((m[3] or "").strip(" \""), m[4])
    return found


@pytest.mark.parametrize("program,name,value,path,want", [
    ("psched", "DMLC_PS_ROOT_URI", "127.0.0.2", "listen.address",
     "127.0.0.2"),
    ("psched", "DMLC_PS_ROOT_PORT", "9000", "listen.port", "9000"),
    ("psserver", "DMLC_PS_ROOT_URI", "node7", "scheduler.address", "node7"),
    ("psserver", "DMLC_PS_ROOT_PORT", "9000", "scheduler.port", "9000"),
    ("psworker-agent", "DMLC_PS_ROOT_URI", "::1", "scheduler.address", "::1"),
    ("psserver", "DMLC_NODE_HOST", "10.1.2.3", "advertise.address",
     "10.1.2.3"),
    ("psserver", "DMLC_INTERFACE", "lo", "advertise.interface", "lo"),
    ("psserver", "PORT", "9107", "listen.port", "9107"),
    ("psserver", "PS_VERBOSE", "2", "log.level", "trace"),
    ("psched", "PS_HEARTBEAT_INTERVAL", "5", "heartbeat.interval", "5s"),
    ("psched", "PS_HEARTBEAT_TIMEOUT", "90", "heartbeat.dead_after", "90s"),
    ("psworker-agent", "PS_RESEND_TIMEOUT", "700", "network.resend_timeout",
     "700ms"),
    ("psworker-agent", "MXNET_KVSTORE_REDUCTION_NTHREADS", "3",
     "local.reduce_threads", "3"),
])
def test_option_comes_from_variable(program, name, value, path, want):
    got, origin = effective(program, **{name: value})[path]
    assert got == want
    assert f"environment {name}" in origin


def test_variable_of_pskv_precedes_that_of_other_systems():
    got, origin = effective("psched", DMLC_PS_ROOT_PORT=9000,
                            PSD_LISTEN_PORT=9001)["listen.port"]
    assert got == "9001" and "PSD_LISTEN_PORT" in origin


def test_interface_without_address_is_an_error():
    done = subprocess.run(
        [harness.program("psserver")], text=True, check=False,
        env=harness.clean_env(DMLC_INTERFACE="nosuch0"),
        stderr=subprocess.PIPE, timeout=harness.PATIENCE)
    assert done.returncode == 78
    assert "advertise.interface: nosuch0 has no address" in done.stderr


WORKER = textwrap.dedent("""
    import numpy as np
    import pskv
    kv = pskv.create('dist_sync')
    w = np.full(3000000, kv.rank + 1, np.float32)
    kv.init(3, w)
    kv.pushpull(3, w)
    assert (w == 3).all(), w
    print('worker', kv.rank, kv.num_workers, kv.num_servers)
    """)


class Started:
    """Processes with nothing but the variables, and one log each."""

    def __init__(self, tmp, port):
        self.tmp = tmp
        self.port = port
        self.all = []
        # Of an ordinary user; None: that of the test.
        self.runtime = None
        self.account = {}

    def as_user(self):
        """From here on: without a folder of a service manager, and not as root,
        who may write anywhere."""
        self.runtime = self.tmp / "runtime"
        self.runtime.mkdir(mode=0o700)
        if os.getuid() == 0:
            self.tmp.chmod(0o755)
            harness.let_others_read(self.tmp.parent)
            os.chown(self.runtime, NOBODY, NOBODY)
            self.account = {"user": NOBODY, "group": NOBODY,
                            "extra_groups": [], "cwd": "/"}

    def environment(self, **env):
        folder = {"RUNTIME_DIRECTORY": self.tmp} if self.runtime is None \
            else {"XDG_RUNTIME_DIR": self.runtime}
        return harness.clean_env(
            PYTHONPATH=PACKAGE, PSKV_LIBRARY=LIBRARY,
            PYTHONDONTWRITEBYTECODE=1, DMLC_PS_ROOT_URI="127.0.0.1",
            DMLC_PS_ROOT_PORT=self.port, DMLC_NUM_SERVER=2, DMLC_NUM_WORKER=2,
            **folder, **env)

    def start(self, name, command, **env):
        programs = [str(harness.BUILD / "daemons" / p)
                    for p in ("psched", "psserver")]
        log = open(self.tmp / f"{name}{len(self.all)}.log", "wb")
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT,
            preexec_fn=harness.die_with_parent, **self.account,
            env=self.environment(**env) | {
                "PATH": ":".join(programs + [os.environ["PATH"]])})
        process.log = log.name
        log.close()
        self.all.append(process)
        return process

    def stop(self):
        for process in self.all:
            process.kill()
            process.wait()


@pytest.fixture
def started(tmp):
    with harness.reserve_port() as reserved:
        s = Started(tmp, reserved.getsockname()[1])
        yield s
        s.stop()


@pytest.mark.parametrize("by_role", [False, True])
def test_daemons_start_by_variables_of_other_systems(started, by_role):
    """Scheduler, servers, agent and workers, by DMLC_* alone; the first two
    as programs, or as the script itself in another role."""
    script = [sys.executable, "-c", WORKER]
    for name, role in (("psserver", "server"), ("psched", "scheduler"),
                       ("psserver", "server")):
        if by_role:
            started.start(name, script, DMLC_ROLE=role)
        else:
            started.start(name, [harness.program(name)], DMLC_ROLE=role)
    started.start("agent", [harness.program("psworker-agent")])
    socket = str(started.tmp / "agent.sock")
    await_workers([started.start("worker", script, DMLC_ROLE="worker",
                                 PSKV_SOCKET=socket) for _ in range(2)])


def await_workers(workers):
    texts = []
    for worker in workers:
        code = worker.wait(timeout=2 * harness.PATIENCE)
        texts.append(pathlib.Path(worker.log).read_text())
        assert code == 0, texts
    assert sorted(texts) == ["worker 0 2 2\n", "worker 1 2 2\n"]


def test_an_ordinary_user_starts_all_by_hand(started):
    """As docs/environment.md says, without an option: the daemons listen in the
    user's own folder, where workers and psctl look."""
    started.as_user()
    script = [sys.executable, "-c", WORKER]
    for name in ("psched", "psserver", "psserver", "psworker-agent"):
        started.start(name, [harness.program(name)])
    await_workers([started.start("worker", script, DMLC_ROLE="worker")
                   for _ in range(2)])
    sockets = started.runtime / "pskv"
    assert {p.name for p in sockets.iterdir()} == {"agent.sock", "psched.sock"}
    assert sockets.stat().st_mode & 0o777 == 0o700
    env = started.environment()
    del env["DMLC_PS_ROOT_URI"]
    done = subprocess.run([harness.program("psctl"), "doctor"], env=env,
                          capture_output=True, text=True, check=False,
                          timeout=harness.PATIENCE, **started.account)
    assert f"this host has an agent at {sockets}/agent.sock" in done.stdout, \
        done.stdout + done.stderr


def test_variables_without_effect_are_reported(started):
    names = {"DMLC_ENABLE_RDMA", "DMLC_LOCAL", "DMLC_PS_VAN_TYPE",
             "DMLC_PS_WATER_MARK", "DMLC_USE_KUBERNETES", "PS_DROP_MSG",
             "PS_RESEND"}
    process = started.start("psched", [harness.program("psched")],
                            **{name: "1" for name in names})
    with open(process.log, encoding="utf-8") as log:
        end = harness.Deadline()
        text = ""
        while "PS_RESEND has" not in text:
            end.left("the scheduler's log")
            text += log.read()
    assert set(re.findall(r"environment (\w+) has no effect", text)) == names


def test_role_is_worker_in_a_training_process():
    done = subprocess.run(
        [sys.executable, "-c", "import pskv; pskv.create('dist_sync')"],
        env=harness.clean_env(PYTHONPATH=PACKAGE, PSKV_LIBRARY=LIBRARY,
                              DMLC_ROLE="master"),
        text=True, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert "DMLC_ROLE is 'master', but must be worker" in done.stderr


def test_table_names_every_variable():
    """docs/environment.md has every variable that the programs read."""
    read = set()
    for folder in ("daemons", "lib"):
        for path in (SOURCE / folder).rglob("*.[ch]"):
            read |= set(re.findall(
                r'"((?:DMLC|MXNET_KVSTORE|OMPI_COMM_WORLD|SLURM|PMI|JOB)_'
                r'[A-Z_]+|PS_(?:VERBOSE|RESEND\w*|HEART\w+|DROP_MSG)|PORT|RANK|'
                r'WORLD_SIZE)"', path.read_text()))
    assert len(read) > 20
    # Variables that pslaunch sets for its workers only are no input.
    read -= {"DMLC_JOB_CLUSTER"}
    missing = {n for n in read if n not in TABLE and
               n.replace("OMPI_COMM_WORLD_SIZE", "_SIZE") not in TABLE}
    assert not missing
