# SPDX-License-Identifier: Apache-2.0
"""Many of what is allowed once: one process, or one user, takes as much of a
node as it can get. An error names the limit that ends that; what it took
comes back when it has gone; and the job beside it, of another user where the
test may have one, checks every sum."""
import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
import trio as support
from raw import Raw, memfd
from trio import Job, PATIENCE, SLOW, wait_for
from wire import message

MIB = 1 << 20
TIB = 1 << 40
SANITIZED = SLOW > 1
NOBODY = 65534
ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not ROOT, reason="only root has a second user")


class Place:
    """A trio, and a job that never stops."""

    def __init__(self, folder, **options):
        folder.chmod(0o755)
        self.trio = support.Trio(folder / "trio", servers=1, agents=1,
                                 **options)
        self.trio.options.append("limits.handshake=20s")
        self.trio.agent_options += ["client.mode=0666"]
        self.trio.start()
        (folder / "trio").chmod(0o755)
        self.agent = self.trio.agents()[0]
        self.path = self.trio.socket(0)
        self.raws = []
        # Workers of another user than the raw ones.
        self.job = Job(self.trio, 2, "bystander",
                       user=NOBODY if ROOT else None, PSKV_OP_TIMEOUT="120s")
        keys = [self.job.key("w", "float32", 50_000),
                self.job.key("n", "int64", 10)]
        self.keys = " ".join(str(k) for k in keys)
        self.work()
        self.rest()
        self.rss = {d.name: d.rss() for d in self.trio.daemons.values()}
        self.maps = self.count_maps()
        self.work()

    def work(self):
        self.works = True
        self.job.say(lambda rank: f"rounds count 5 {rank} 1000 {self.keys}")

    def rest(self):
        if self.works:
            self.works = False
            results = self.job.hear()
            assert len({tuple(r) for r in results}) == 1

    def leave(self):
        """All raw workers have gone."""
        while self.raws:
            self.raws.pop().close()
        wait_for(lambda: self.agent.state()["sessions"] == 2,
                 "the raw workers' sessions to be gone")

    def count_maps(self):
        """Mappings of the agent, and their bytes."""
        text = Path(f"/proc/{self.agent.pid}/maps").read_text()
        size = 0
        for line in text.splitlines():
            first, last = line.split()[0].split("-")
            size += int(last, 16) - int(first, 16)
        return text.count("\n"), size

    def check(self, growth=24 * MIB):
        """All daemons live, the job has made rounds, and the resources are
        released."""
        self.leave()
        self.rest()
        self.work()
        for d in self.trio.daemons.values():
            assert d.alive(), d.text()
            assert (SANITIZED or d.rss() < self.rss[d.name] + growth), d.name
        if not SANITIZED:
            wait_for(lambda: self.count_maps()[0] < self.maps[0] + 64 and
                     self.count_maps()[1] < self.maps[1] + TIB // 4,
                     "the agent's mappings to be gone")

    def raw(self, uid=None, **hello):
        self.raws.append(Raw(self.path, uid, seconds=PATIENCE, **hello))
        return self.raws[-1]

    def end(self):
        self.leave()
        self.rest()
        self.job.tell("close")
        for w in self.job:
            assert w.end() == 0
        self.trio.await_empty()


def make_place(**options):
    folder = Path(tempfile.mkdtemp(prefix="pskv-test-"))
    p = None
    try:
        p = Place(folder, **options)
        yield p
        p.end()
    finally:
        if p is not None:
            p.trio.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def place():
    """With the limits that an agent has by default."""
    yield from make_place()


@pytest.fixture(scope="module")
def tight():
    """With small ones."""
    yield from make_place(agent_options=[
        "client.max_clients=12", "limits.user.sessions=6",
        "limits.user.regions=100", "limits.user.mapped=1GiB",
        "limits.job.keys=50", "local.memory=64MiB",
        "limits.user.memory=20MiB", "limits.session.queries=32",
        "limits.user.operations=100"])


# ------------------------------------------------------------------- regions

def test_regions_of_a_session(place):
    fd = memfd(4096)
    with place.raw().welcome() as raw:
        with pytest.raises((OSError, EOFError, AssertionError)):
            for i in range(1, 4000):
                raw.region(i, 4096, fd)
                if i % 100 == 0:
                    assert not raw.pending()
            raise EOFError
        text = raw.end()
        assert "1024 of 1024 regions (limits.session.regions)" in text
    os.close(fd)
    place.check()


def test_regions_that_operations_still_read(place):
    """To let go of one that an operation uses gives no room for another."""
    fd = memfd(4096)
    pair = dict(job="readers", num_workers=2)
    with place.raw(**pair) as raw, place.raw(**pair) as other:
        raw.welcome()
        other.welcome()
        with pytest.raises((OSError, EOFError, AssertionError)):
            for i in range(1, 1100):
                key = raw.key(i, 8).get("key", 0)
                raw.region(i, 4096, fd)
                # The other rank contributes nothing, so the round stays open.
                raw.say("l_op", op_id=i, op=1, key=key, region=i, round=1)
                raw.say("l_region_gone", region=i)
            raise AssertionError("the regions of 1,099 open rounds")
        assert "(limits.session.regions)" in raw.end()
    os.close(fd)
    place.check()


def test_no_region_before_the_welcome(place):
    with place.raw(num_workers=2) as raw:
        raw.region(1, 4096)
        assert "before l_welcome" in raw.end()
    place.check()


def test_address_space_of_a_session(place):
    with place.raw().welcome() as raw:
        with pytest.raises((OSError, EOFError, AssertionError)):
            for i in range(1, 200):
                raw.region(i, TIB // 2)
                if i % 8 == 0:
                    assert not raw.pending()
            raise EOFError
        if SANITIZED:
            with contextlib.suppress(OSError, EOFError):
                raw.key(1, 4)  # All regions have been looked at by then.
            if "memfd cannot be mapped" in place.agent.text():
                pytest.skip("the sanitizer leaves no 4 TiB of address space")
        text = raw.end()
        assert ("4.0 TiB of 4.0 TiB of mapped memory and needs 512.0 GiB more "
                "(limits.session.mapped)") in text
    place.check()


@pytest.mark.skipif(SANITIZED, reason="sanitizers need the address space")
def test_a_region_for_which_the_agent_has_no_room(place):
    # The agent unmaps regions soon, not at once.
    wait_for(lambda: place.count_maps()[1] < place.maps[1] + 512 * MIB,
             "the regions of former tests to be gone")
    limit = place.count_maps()[1] + 1024 * MIB
    before = resource.prlimit(place.agent.pid, resource.RLIMIT_AS,
                              (limit, resource.RLIM_INFINITY))
    with place.raw().welcome() as raw:
        key = raw.key(1, 1024).get("key", 0)
        raw.region(1, 2048 * MIB)
        raw.region(2, 4096)
        raw.say("l_op", op_id=1, op=1, key=key, region=1, round=1)
        done = raw.await_("l_done")
        assert "region 1: memfd cannot be mapped: 2.0 GiB: " in done["text"]
        assert "(errno 12); the agent may have " in done["text"]
        raw.say("l_op", op_id=2, op=1, key=key, region=2, round=1)
        assert raw.await_("l_done").get("error", 0) == 0
        resource.prlimit(place.agent.pid, resource.RLIMIT_AS, before)
    place.check()


@as_root
def test_regions_of_a_user(tight):
    fd = memfd(4096)
    raws = [tight.raw().welcome() for _ in range(3)]
    for raw in raws[:2]:
        for i in range(1, 51):
            raw.region(i, 4096, fd)
        raw.say("l_barrier", op_id=1, number=1)
        assert raw.await_("l_done").get("error", 0) == 0
    raws[2].region(1, 4096, fd)
    assert ("user 0 has 100 of 100 regions (limits.user.regions)"
            in raws[2].end())
    # Other sessions of this user continue, and freed memory is available.
    raws[0].say("l_region_gone", region=7)
    raws[1].region(51, 4096, fd)
    raws[1].say("l_barrier", op_id=2, number=2)
    assert raws[1].await_("l_done").get("error", 0) == 0
    os.close(fd)
    tight.check()


# -------------------------------------------------------------------- places

@as_root
def test_places_of_a_user(tight):
    raws = [tight.raw(num_workers=99) for _ in range(6)]
    extra = tight.raw(num_workers=99)
    assert ("user 0 has 6 of 6 sessions (limits.user.sessions)"
            in extra.end())
    # All places of the node: 2 are the bystander's, 6 are taken.
    for i in range(4):
        tight.raw(uid=2000 + i).welcome()
    late = tight.raw(uid=3000)
    assert "12 of 12 sessions (client.max_clients)" in late.end()
    raws[5].close()
    wait_for(lambda: try_place(tight), "the place to be free")
    tight.check()


def try_place(tight):
    with tight.raw() as raw:
        return raw.hear()[0] == "l_welcome"


def test_a_start_without_end(place):
    for timeout in ((1 << 64) - 1, 8 * 86400 * 10**9):
        with place.raw(num_workers=2, start_timeout_ns=timeout) as raw:
            assert "at most 7 days" in raw.end()
    place.check()


# ---------------------------------------------------------------------- keys

def psctl(place, verb):
    out = subprocess.run(
        [support.program("psctl"), "-e", place.trio.endpoint, verb, "-w",
         "json"], capture_output=True, check=True, env=support.clean_env())
    return json.loads(out.stdout)[verb]


def loads(place):
    """Bytes of keys that the scheduler has placed on its servers."""
    return {j["name"]: j["bytes"] for j in psctl(place, "jobs")}


def costs(place, role):
    """{(kind, name, cost): row} of the first daemon of this role."""
    for node in psctl(place, "nodes"):
        if node["role"] == role:
            return {(c["kind"], c["name"], c["cost"]): c
                    for c in node["costs"]}
    return {}


def test_partitions_of_a_job(place):
    """200 keys of 65,536 partitions cost gigabytes, in 60 bytes each."""
    with place.raw(num_servers=1, mode=1, partition_bytes=4096) as raw:
        raw.welcome()
        taken = 0
        for i in range(1, 201):
            info = raw.key(i, 1024 * 65536)
            if info.get("error", 0) == 0:
                taken += 1
        assert taken == 4
        assert info["error"] == -26
        assert ("262144 of 262144 partitions and needs 65536 more "
                "(limits.job.partitions)") in info["text"]
        # Refused keys do not count as load of the servers.
        assert loads(place)[raw.job] == taken * 65536 * 4096
        grown = place.agent.rss() - place.rss["node0"]
        assert SANITIZED or grown < 96 * MIB, grown
    place.check(growth=64 * MIB)


def test_keys_of_a_job(tight):
    with tight.raw().welcome() as raw:
        for i in range(1, 51):
            assert raw.key(i, 8).get("error", 0) == 0
        info = raw.key(51, 8)
        assert "50 of 50 keys (limits.job.keys)" in info["text"]
        # An existing key is found, and the session continues.
        assert raw.key(7, 8).get("error", 0) == 0
    tight.check()


# -------------------------------------------------------------------- memory

@as_root
def test_memory_of_a_user_and_of_the_node(tight):
    """local.memory is 64 MiB, 20 MiB of it a user's; results lie there
    twice."""
    raws = [tight.raw(uid=3000 + i).welcome() for i in range(4)]
    for raw in raws[:3]:
        assert raw.key(1, 9 * MIB // 4).get("error", 0) == 0
        info = raw.key(2, 2 * MIB // 4)
        assert info["error"] == -2 and "limits.user.memory" in info["text"]
    info = raws[3].key(1, 9 * MIB // 4)
    assert "two results of 9437184 bytes on this node" in info["text"]
    assert "of 64.0 MiB of memory" in info["text"]
    assert "(local.memory)" in info["text"]
    raws[0].close()
    wait_for(lambda: raws[3].key(3, 9 * MIB // 4).get("error", 0) == 0,
             "the memory to be free")
    tight.check()


# ----------------------------------------------------- questions, declarations

def waiting(place, count, **hello):
    """A worker of a job of two that waits in `count` operations, and the other
    one, which does nothing."""
    pair = dict(job=f"waiting{count}", num_workers=2, num_servers=1, **hello)
    one, two = place.raw(**pair), place.raw(**pair)
    one.welcome()
    two.welcome()
    for i in range(count):
        key = one.key(i, 8).get("key", 0)
        # The contribution of the other rank.
        one.say("l_op", op_id=i, op=4, key=key, root=1, round=1)
    return one, two


def test_a_worker_that_asks_in_a_loop(place):
    """Others' barriers pass meanwhile, and nothing piles up."""
    one, two = waiting(place, 3)
    place.rest()
    ask = b"".join(message("l_stall_query", op_id=i % 3) for i in range(3000))
    one.sock.settimeout(0.2)
    for _ in range(100):
        try:
            one.sock.sendall(ask)
        except (TimeoutError, ConnectionError):
            break  # Not read for now, or cut off.
    place.job.tell("barrier")
    one.sock.settimeout(PATIENCE)
    because = None
    try:
        because = one.await_("l_stall_reply")["text"]
    except (EOFError, ConnectionError):
        assert "stall queries in a second" in (
            one.last_words or "stall queries in a second")
    assert because is None or "rank 1" in because
    grown = place.agent.rss() - place.rss["node0"]
    assert SANITIZED or grown < 32 * MIB, grown
    place.work()
    place.check()


def test_questions_of_a_session(tight):
    """As many queries are open as allowed; the next is answered from the
    agent's own state, with the limit."""
    one, two = waiting(tight, 40)
    tight.trio.sched.process.send_signal(signal.SIGSTOP)
    try:
        for i in range(40):
            one.say("l_stall_query", op_id=i)
        text = one.await_("l_stall_reply")["text"]
    finally:
        tight.trio.sched.process.send_signal(signal.SIGCONT)
    assert "has 32 of 32 open queries (limits.session.queries)" in text
    assert "broadcast of" in text
    answered = {one.await_("l_stall_reply")["op_id"] for _ in range(39)}
    assert len(answered) == 39
    tight.check()


def test_declarations_while_the_scheduler_is_away(tight):
    with tight.raw(num_servers=1).welcome() as raw:
        tight.trio.sched.process.send_signal(signal.SIGSTOP)
        try:
            for i in range(1, 41):
                raw.say("l_optimizer_change", op_id=i, name="lr", value=0.5,
                        round=0)
            done = [raw.await_("l_done") for _ in range(8)]
        finally:
            tight.trio.sched.process.send_signal(signal.SIGCONT)
        for d in done:
            assert d["error"] == -26
            assert "(limits.session.queries)" in d["text"]
        rest = [raw.await_("l_done") for _ in range(32)]
        assert all("limits." not in d["text"] for d in rest)
    tight.check()


def test_operations_of_a_user(tight):
    """Its operation fails, and its session continues."""
    one, two = waiting(tight, 40)
    key = one.key(0, 8).get("key", 0)
    for i in range(100, 200):
        one.say("l_op", op_id=i, op=0, key=key, root=1)
    done = one.await_("l_done")
    assert done["error"] == -26
    assert "(limits.user.operations)" in done["text"]
    tight.check()


# -------------------------------------------------------------------- status

def test_status_shows_the_costs_of_peers(tight):
    with tight.raw().welcome() as raw:
        for i in range(1, 51):
            assert raw.key(i, 8).get("error", 0) == 0
        assert raw.key(51, 8)["error"] == -26
        job = ("job", raw.job, "keys")
        # A report may be of the time before the last key.
        wait_for(lambda: costs(tight, "agent").get(job, {}).get("refused"),
                 "all keys in status")
        shown = costs(tight, "agent")
        assert shown[job]["used"] == 50 and shown[job]["limit"] == 50
        assert shown[job]["refused"] >= 1
        own = {c: row for (kind, _, c), row in shown.items()
               if kind == "daemon"}
        assert own["keys"]["used"] == 52  # With the bystander's.
        assert own["sessions"]["used"] == 3
        assert own["memory"]["limit"] == 64 * MIB
        assert 0 < own["memory"]["used"] < 4 * MIB
        assert own["output"]["peak"] > 0
        assert own["log_lines"]["used"] >= 1  # The key that was refused.
        assert len(shown) <= 16
    wait_for(lambda: costs(tight, "server").get(
        ("job", "bystander", "partitions"), {}).get("used") == 2,
        "the partitions of a job on its server")
    shown = costs(tight, "server")
    assert shown["job", "bystander", "memory"]["used"] > 200_000
    assert (shown["daemon", "ps0", "memory"]["used"] >=
            shown["job", "bystander", "memory"]["used"])

    def sched():
        return {c: row for (kind, _, c), row in costs(tight, "sched").items()
                if kind == "daemon"}
    # psched hears of the end of the job above from the agent, later.
    wait_for(lambda: [sched()[c]["used"] for c in ("keys", "partitions")]
             == [2, 2], "the bystander's keys alone on psched")
    # Of keys, their partitions and the table; and of messages to members.
    assert sched()["memory"]["used"] > 0 and sched()["output"]["peak"] > 0
    wait_for(lambda: job not in costs(tight, "agent"), "the job to be gone")
    wait_for(lambda: [r["used"] for (k, _, c), r in
                      costs(tight, "agent").items()
                      if k == "daemon" and c == "keys"] == [2],
             "what it took to be back")
    tight.check()
