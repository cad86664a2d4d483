# SPDX-License-Identifier: Apache-2.0
"""Real daemons and workers for tests: started on free ports, waited for with
deadlines, never with pauses, and ended."""
import ctypes
import fcntl
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from fd_store import FdStore

BUILD = Path(os.environ.get("PSKV_BUILD_DIR", "build")).resolve()
# The library that Python loads: without a sanitizer's code, which the daemons
# may have.
LIBRARY = Path(os.environ.get("PSKV_TEST_LIBRARY") or
               BUILD / "lib" / "client" / "libpsclient.so.0").absolute()
SOURCE = Path(__file__).resolve().parents[2]
PACKAGE = SOURCE / "lib" / "client" / "python"
# Sanitizers take their time.
SLOW = float(os.environ.get("PSKV_TEST_SLOW", "1"))
# Seconds that measure_load() takes on a core without other work, or less.
IDLE_S = 0.08


def measure_load():
    """How many times longer than there work takes here now, at least 1: on a
    slower machine, and on one with more work than cores."""
    begin = time.monotonic()
    for _ in range(1_000_000):
        pass
    return max(1.0, (time.monotonic() - begin) / IDLE_S)


LOAD = measure_load()


def limit(seconds):
    """Seconds after which a test may fail for what takes `seconds` at most on a
    machine without other work. Every time limit of tests comes from here."""
    return seconds * SLOW * LOAD


# Generous: tests wait for events, and this limit only ends a hung test.
PATIENCE = limit(30)

# Busy machines must not make the scheduler give up members.
CALM = ["heartbeat.suspect_after=10s", "heartbeat.dead_after=30s"]
# A failed test must not wait for its job.
BRIEF = ["shutdown.grace=3s"]


def program(name, build=BUILD):
    path = build / "daemons" / name / name
    assert path.exists(), f"{path} is not built"
    return str(path)


def sandbox(name):
    """Command before a daemon that runs it under the sandbox of its unit, if
    PSKV_TEST_SANDBOX names the folder of the units."""
    folder = os.environ.get("PSKV_TEST_SANDBOX")
    if not folder:
        return []
    return ["/usr/bin/python3", str(SOURCE / "tests/support/sandbox.py"),
            f"{folder}/{name}.service"]


def clean_env(**more):
    """Nothing of ours: PSKV_*, PSD_*, DMLC_* and contexts of psctl would change
    what is tested. A training process prints its first note of a wait after
    half a minute: where all takes longer, later, so that tests of what it
    prints see none. None: not even that variable."""
    keep = ("PATH", "HOME", "LANG", "TMPDIR", "ASAN_OPTIONS", "UBSAN_OPTIONS",
            "TSAN_OPTIONS", "LSAN_OPTIONS")
    env = {k: v for k, v in os.environ.items() if k in keep}
    env["XDG_CONFIG_HOME"] = "/nonexistent"
    if "PSKV_SOCKET" in more and limit(30) >= 31:
        env["PSKV_WAIT_NOTES"] = f"{limit(30):.0f}s"
    env.update({k: str(v) for k, v in more.items()})
    if more.get("PSKV_WAIT_NOTES", "") is None:
        del env["PSKV_WAIT_NOTES"]
    return env


def need_program(name, package=None):
    """Path of a program, without which a test is skipped."""
    import pytest  # Not for the soaks.
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed (package {package or name}; "
                    "./dev packages --all)")
    return path


PRCTL = ctypes.CDLL(None).prctl


def die_with_parent():
    """In the child: a test that is killed leaves no process."""
    PRCTL(1, signal.SIGKILL)


class Deadline:
    """`seconds` are of limit(). What is late has more time where the machine
    has become slower since LOAD was measured."""

    def __init__(self, seconds=PATIENCE):
        self.seconds = seconds
        self.end = time.monotonic() + seconds

    def left(self, what):
        left = self.end - time.monotonic()
        if left <= 0:
            left += self.seconds * max(0, measure_load() / LOAD - 1)
        assert left > 0, f"too late, after {self.seconds:.0f} s: {what}"
        return left

    def rest(self):
        """The same for calls that end by themselves: it may be nothing."""
        return max(0.0, self.end - time.monotonic())


def reserve_port(address="127.0.0.1"):
    """A socket that keeps a port for the processes that are given it: they set
    SO_REUSEADDR and may listen there, but nobody is given the port by chance,
    be it for a connection that is made to the port itself."""
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((address, 0))
    return s


def wait_for(question, what, seconds=PATIENCE, step=0.02, read=(), write=()):
    """Asks until the answer is true, and returns it. Every wait of a test is
    here: a test that fails or hangs shows what it waited for. Between two
    questions it sleeps until one of these descriptors can be read or written;
    without any, for `step`, as for things that give no signal. `seconds` may be
    a Deadline, for several waits."""
    deadline = seconds if isinstance(seconds, Deadline) else Deadline(seconds)
    asked = False
    while True:
        answer = question()
        if answer:
            return answer
        left = deadline.left(what)
        if not asked and "PYTEST_CURRENT_TEST" in os.environ:
            print("waits for:", what, file=sys.stderr, flush=True)
        asked = True
        select.select(read, write, [], left if read or write else step)


def ready_now(read=(), write=()):
    """Those of the descriptors that can be read or written."""
    readable, writable, _ = select.select(read, write, [], 0)
    return readable + writable


def wait_ready(what, read=(), write=(), seconds=PATIENCE):
    """The same, at least one."""
    return wait_for(lambda: ready_now(read, write), what, seconds, read=read,
                    write=write)


def read_until(fd, is_enough, what, seconds=PATIENCE, seen=b""):
    """The bytes of a descriptor, behind those that were seen before, until they
    are enough or at their end; a terminal without a writer is at its end."""
    deadline = seconds if isinstance(seconds, Deadline) else Deadline(seconds)
    while not is_enough(seen):
        wait_ready(what, [fd], seconds=deadline)
        try:
            data = os.read(fd, 65536)
        except OSError:
            break
        if not data:
            break
        seen += data
    return seen


def be_slow(seconds):
    """A slow process as the fault that is tested: no test waits in this way."""
    time.sleep(seconds)


# Exit codes after a report: of the thread sanitizer, and of leaks. The others
# abort.
SANITIZER_CODES = (66, 23)
REPORT = re.compile(r"^.*(WARNING: ThreadSanitizer|ERROR: \w+Sanitizer|"
                    r"Sanitizer:DEADLYSIGNAL|: runtime error: )", re.M)


def crash_of(name, code, text):
    """How a daemon ended, and the report of its sanitizer in its log, if by a
    fault of its own: tests send no other signals than these, and no daemon has
    these exit codes otherwise. Else ""."""
    if code in (None, -signal.SIGKILL, -signal.SIGTERM) or (
            code >= 0 and code not in SANITIZER_CODES):
        return ""
    how = (f"signal {-code} ({signal.Signals(-code).name})" if code < 0
           else f"code {code} of a sanitizer")
    begin = REPORT.search(text)
    return (f"{name} ended with {how}:\n" +
            (text[begin.start():][:20000] if begin else text[-3000:]))


class Daemon:
    def __init__(self, name, argv, folder, env=None, store=None):
        """`store`: an FdStore, as of a service manager."""
        self.name = name
        self.log = folder / f"{name}.log"
        self.port_file = folder / f"{name}.port"
        read, write = os.pipe()
        self.ready = read
        argv = argv + ["--ready-fd", str(write)]
        env = env or clean_env()
        fds = []
        if store is not None:
            # The store's is 3 there.
            again = fcntl.fcntl(write, fcntl.F_DUPFD, 10)
            os.close(write)
            write = again
            argv, more, fds = store.command(argv[:-1] + [str(write)])
            env = env | more
        out = open(self.log, "ab" if fds else "wb")
        self.process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            pass_fds=[write, *fds], env=env, preexec_fn=die_with_parent)
        out.close()
        os.close(write)

    @property
    def pid(self):
        return self.process.pid

    @property
    def port(self):
        return int(self.port_file.read_text())

    def text(self):
        return self.log.read_text(errors="replace")

    def await_ready(self, deadline):
        wait_ready(f"{self.name} ready", [self.ready], seconds=deadline)
        assert os.read(self.ready, 1) == b"\n", \
            f"{self.name} is not ready:\n{self.text()}"

    def alive(self):
        return self.process.poll() is None

    def kept(self):
        """Number of the process that a keeper has started; 0: none now."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        children = path.read_text().split()
        return int(children[0]) if children else 0

    def crash(self):
        return crash_of(self.name, self.process.poll(), self.text())

    def await_log(self, word, seconds=PATIENCE, since=0):
        return wait_for(lambda: word in self.text()[since:],
                        f"'{word}' in the log of {self.name}", seconds)

    def rss(self):
        """Resident bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().split("\n"):
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        return 0

    def state(self):
        """Fields of the state that SIGUSR1 writes to the log."""
        since = len(self.text())
        self.process.send_signal(signal.SIGUSR1)
        wait_for(lambda: "\n" in self.text()[since:].partition(" residue ")[2],
                 f"the state of {self.name}")
        fields = {}
        for line in self.text()[since:].split("\n"):
            words = line.split(" state ", 1)[-1].split()
            for name, value in zip(words, words[1:]):
                if value.isdigit() and not name.isdigit():
                    fields.setdefault(name, int(value))
        return fields

    def await_end(self, deadline):
        """The exit code; kills it when it takes too long."""
        try:
            return self.process.wait(max(0.1, deadline.rest()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def stop(self, deadline, kill=False):
        if self.alive():
            self.process.send_signal(signal.SIGKILL if kill
                                     else signal.SIGTERM)
            self.await_end(deadline)
        if self.ready >= 0:
            os.close(self.ready)
            self.ready = -1
        return self.process.returncode


def let_others_read(folder):
    """Adds permissions, and takes none, as of /tmp."""
    folder.chmod(folder.stat().st_mode | 0o055)


class Trio:
    """psched, some psservers and some agents. `order` permutes who starts
    first: a list of names such as "ps1", "sched", "node0"."""

    def __init__(self, folder, servers=2, agents=1, options=(),
                 server_options=(), agent_options=(), order=None, level="info",
                 sched_ready=None, server_command=(), agent_command=(),
                 owner=None, daemon_options=None, builds=None,
                 keep=None):
        self.folder = folder
        folder.mkdir()
        if owner is not None:
            folder.chmod(0o1777)  # As /tmp: both users make files there.
            let_others_read(folder.parent)
        # Command before that of a daemon, which sets its user.
        self.server_command = list(server_command)
        self.agent_command = list(agent_command)
        self.server_names = [f"ps{i}" for i in range(servers)]
        self.agent_names = [f"node{i}" for i in range(agents)]
        self.options = CALM + BRIEF + list(options)
        self.server_options = BRIEF + list(server_options)
        self.agent_options = BRIEF + list(agent_options)
        # Options of one daemon, by its name ("sched", "ps0", "node0").
        self.daemon_options = daemon_options or (lambda name: [])
        # Build folder of one daemon, by its name, in place of BUILD.
        self.builds = builds or {}
        # State memory of servers outlives the process: "keeper", or "store", as
        # with a service manager; None: it does not.
        self.keep = keep
        self.stores = {}
        self.order = order
        self.level = level
        # The address is known before psched starts, and when it restarts.
        # Of all addresses, because some tests listen on all.
        self.reserved = reserve_port("0.0.0.0")
        self.port = self.reserved.getsockname()[1]
        self.daemons = {}
        # Called when psched serves; gives the address that members dial.
        self.sched_ready = sched_ready
        self.dialled = None
        self.tools = None  # Where psctl reaches psched, if not by TCP.

    @property
    def sched(self):
        return self.daemons["sched"]

    @property
    def endpoint(self):
        return f"127.0.0.1:{self.port}"

    @property
    def control(self):
        """Unix socket of psched."""
        return str(self.folder / "psched.sock")

    def servers(self):
        return [self.daemons[n] for n in self.server_names]

    def agents(self):
        return [self.daemons[n] for n in self.agent_names]

    def socket(self, agent):
        return str(self.folder / f"node{agent}.sock")

    def launch(self, name):
        argv = ["-c", "/dev/null", "--log-level", self.level, "--log-format",
                "text"]
        build = self.builds.get(name, BUILD)
        if name == "sched":
            argv = sandbox("psched") + [program("psched", build)] + argv
            options = [f"listen.port={self.port}",
                       f"control.socket={self.control}"] + self.options
        elif name in self.server_names:
            argv = (self.server_command + sandbox("psserver") +
                    [program("psserver", build)] + argv)
            options = ["listen.port=0", f"node.name={name}",
                       "scheduler.retry.max=1s"] + self.server_options
            argv += ["--keep"] if self.keep == "keeper" else []
        else:
            argv = (self.agent_command + sandbox("psworker-agent") +
                    [program("psworker-agent", build)] + argv)
            options = ["listen.port=0", f"node.name={name}",
                       "scheduler.retry.max=1s",
                       f"client.socket={self.folder}/{name}.sock",
                       ] + self.agent_options
        if name != "sched":
            argv += ["--sched", self.dialled or self.endpoint]
        if name not in self.agent_names:
            argv += ["--port-file", str(self.folder / f"{name}.port")]
        for option in options + self.daemon_options(name):
            argv += ["-o", option]
        if name in self.daemons:  # Its log is overwritten.
            assert not self.daemons[name].crash(), self.daemons[name].crash()
        self.daemons[name] = Daemon(name, argv, self.folder,
                                    store=self.store(name))
        return self.daemons[name]

    def store(self, name):
        """Store of a server's descriptors, if it has one."""
        if self.keep != "store" or name not in self.server_names:
            return None
        if name not in self.stores:
            self.stores[name] = FdStore(self.folder / f"{name}.notify")
        return self.stores[name]

    def start(self):
        deadline = Deadline()
        order = self.order or (["sched"] + self.server_names +
                               self.agent_names)
        for name in order:
            daemon = self.launch(name)
            if name == "sched":
                daemon.await_ready(deadline)
                assert daemon.port == self.port
                if self.sched_ready is not None:
                    self.dialled = self.sched_ready(self.port)
        for name in order:
            if name != "sched":
                self.daemons[name].await_ready(deadline)

    def stop(self):
        deadline = Deadline()
        alive = [d for d in self.daemons.values() if d.alive()]
        for d in reversed(alive):
            d.process.send_signal(signal.SIGTERM)
        bad = [f"{d.name} ended with {d.process.returncode}:\n"
               f"{d.text()[-3000:]}" for d in alive
               if d.await_end(deadline) and not d.crash()]
        for d in self.daemons.values():
            d.stop(deadline)
        for store in self.stores.values():
            store.close()
        self.stores = {}
        self.reserved.close()
        # Also those that a test has seen end.
        bad += [d.crash() for d in self.daemons.values() if d.crash()]
        assert not bad, "\n".join(bad)

    def kill(self, name):
        self.daemons[name].stop(Deadline(), kill=True)

    def replace(self, name):
        """Kills a daemon; the next one under its name begins with nothing."""
        self.kill(name)
        self.launch(name).await_ready(Deadline())

    def psctl(self, *words, endpoint=None, timeout="20s"):
        """(exit code, standard output, standard error)"""
        done = subprocess.run(
            [program("psctl"), "-e", endpoint or self.tools or self.endpoint,
             "--timeout",
             timeout, *words],
            capture_output=True, text=True, timeout=PATIENCE + 20,
            env=clean_env(), check=False)
        return done.returncode, done.stdout, done.stderr

    def ask(self, *words):
        code, out, err = self.psctl("-w", "json", *words)
        assert code in (0, 3), (code, err)
        answer = json.loads(out)
        assert answer["schema"] == 1
        return answer

    def node(self, name):
        """The scheduler's row of a member, or None."""
        return next((n for n in self.ask("nodes")["nodes"]
                     if n["name"] == name), None)

    def await_node(self, name, field, value):
        wait_for(lambda: (self.node(name) or {}).get(field) == value,
                 f"{field} {value} of {name}")

    def await_ranks(self, job, count):
        """Until this number of ranks of a job have joined."""
        wait_for(lambda: [j["live"] for j in self.ask("jobs")["jobs"]
                          if j["name"] == job] == [count],
                 f"{count} ranks of job {job}")

    def open_jobs(self):
        return [j["name"] for j in self.ask("jobs")["jobs"]
                if j["phase"] not in ("ended", "failed")]

    def await_empty(self):
        """No job left, nothing in progress on any daemon."""
        try:
            wait_for(lambda: not self.open_jobs(), "the end of all jobs")
        except AssertionError as e:
            raise AssertionError(self.psctl("jobs")[1] +
                                 self.psctl("stall")[1]) from e
        wait_for(lambda: not self.ask("keys")["keys"], "the end of all keys")
        for d in self.daemons.values():
            wait_for(lambda d=d: d.state()["residue"] == 0,
                     f"nothing left on {d.name}")


class WorkerError(Exception):
    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


class Worker:
    """A training process that executes commands, one line each."""

    def __init__(self, socket_path, job, rank, size, user=None, build=BUILD,
                 **env):
        self.rank = rank
        variables = {"PSKV_SOCKET": socket_path, "PSKV_JOB": job,
                     "PSKV_NUM_WORKERS": size,
                     "PSKV_OP_TIMEOUT": f"{limit(60):.0f}s",
                     "PSKV_START_TIMEOUT": f"{limit(60):.0f}s"}
        if rank is not None:
            variables["PSKV_RANK"] = rank
        variables.update(env)
        self.process = subprocess.Popen(
            [str(build / "tests/integration/integration_worker")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=clean_env(**variables), preexec_fn=die_with_parent,
            user=user, group=user, extra_groups=None if user is None else [])
        self.buffer = b""
        self.said = "start"
        self.keys = {}

    @property
    def pid(self):
        return self.process.pid

    def say(self, line):
        self.said = line
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, seconds=PATIENCE * 3):
        """The words after "ok"; WorkerError for "err"."""
        self.buffer = read_until(
            self.process.stdout.fileno(), lambda seen: b"\n" in seen,
            f"an answer of rank {self.rank} to '{self.said}'", seconds,
            self.buffer)
        if b"\n" not in self.buffer:
            raise WorkerError(None, f"worker {self.rank} ended with "
                                    f"{self.process.wait()}")
        line, self.buffer = self.buffer.split(b"\n", 1)
        words = line.decode().split(" ", 2)
        if words[0] == "err":
            raise WorkerError(int(words[1]), words[2])
        return line.decode().split(" ")[1:]

    def ask(self, line, seconds=PATIENCE * 3):
        self.say(line)
        return self.hear(seconds)

    def key(self, name, dtype, count):
        number = int(self.ask(f"key {name} {dtype} {count}")[0])
        self.keys[name] = number
        return number

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                pipe.close()
            except OSError:
                pass
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return self.process.returncode


class Job:
    """Workers of one job, spread over the agents of a trio like pslaunch
    does. Within `with`, they are closed in good order at the end, unless the
    test failed."""

    def __init__(self, trio, size, name="job", servers=None, open_now=True,
                 user=None, **env):
        self.workers = []
        agents = len(trio.agent_names)
        env.setdefault("PSKV_NUM_SERVERS",
                       len(trio.server_names) if servers is None else servers)
        # Most of these jobs live through losses; the default is fail.
        env.setdefault("PSKV_ON_LOSS", "wait")
        self.env = env
        self.user = user
        self.trio = trio
        self.name = name
        self.size = size
        for rank in range(size):
            self.workers.append(self.make(rank, rank * agents // size))
        if open_now:
            self.tell("open")

    def make(self, rank, agent):
        return Worker(self.trio.socket(agent), self.name, rank, self.size,
                      user=self.user, **self.env)

    def __getitem__(self, rank):
        return self.workers[rank]

    def __iter__(self):
        return iter(self.workers)

    def say(self, line):
        """To all; `line` may be a function of the rank."""
        for w in self.workers:
            w.say(line(w.rank) if callable(line) else line)

    def hear(self):
        return [w.hear() for w in self.workers]

    def tell(self, line):
        self.say(line)
        return self.hear()

    def key(self, name, dtype, count):
        numbers = self.tell(f"key {name} {dtype} {count}")
        assert len({tuple(n) for n in numbers}) == 1, numbers
        return int(numbers[0][0])

    def close(self):
        self.tell("close")
        for w in self.workers:
            assert w.end() == 0

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is None:
            live = [w for w in self.workers if w.process.poll() is None]
            for w in live:
                w.say("close")
            for w in live:
                w.hear()
        for w in self.workers:
            if w.process.poll() is None and kind is not None:
                w.kill()
            w.end()
        return False
