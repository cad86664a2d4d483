# SPDX-License-Identifier: Apache-2.0
"""psctl trace: the timeline of a job on several nodes, and the rank for which
the others wait."""
import json
import os
import pwd
import socket
import subprocess
import threading
from collections import defaultdict

import pytest
import trio as support
import wire
from python_job import Job as Programs
from trio import Job, be_slow

NOBODY = pwd.getpwnam("nobody").pw_uid
needs_root = pytest.mark.skipif(os.getuid() != 0,
                                reason="only root can become another user")
FLOATS = 1000
# base/limits.h, and bytes of the file for each entry: a slice and two ends.
ENTRIES = 16384
ENTRY_BYTES = 700
SLOW_S = 0.03 * support.SLOW


def rounds(t, folder, count, slow=None, size=3):
    """A job of three ranks that has made rounds of two keys. The rank `slow`
    begins each of them later."""
    zeros = folder / "zeros"
    zeros.write_bytes(bytes(4 * FLOATS))
    job = Job(t, size)
    keys = [job.key(name, "float32", FLOATS) for name in ("w", "fc1.bias")]
    for _ in range(count):
        for key in keys:
            line = f"pushpull {key} src={zeros}"
            for w in job:
                if w.rank != slow:
                    w.say(line)
            if slow is not None:
                be_slow(SLOW_S)
                job[slow].say(line)
            job.hear()
    job.tell("barrier")
    return job


def check_file(path):
    """The events by phase, after checks of what every file has."""
    text = path.read_text()
    data = json.loads(text)
    events = data["traceEvents"]
    by_phase = defaultdict(list)
    for e in events:
        by_phase[e["ph"]].append(e)
    assert set(by_phase) <= {"M", "X", "s", "t", "f"}
    slices = defaultdict(list)
    for e in by_phase["X"]:
        assert e["ts"] >= 0 and e["dur"] >= 1
        slices[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"], e))
    # Slices of one thread do not overlap, and each thread has a name.
    for some in slices.values():
        some.sort(key=lambda s: s[:2])
        for a, b in zip(some, some[1:]):
            assert a[1] <= b[0] + 0.001, (a, b)
    named = {(e["pid"], e["tid"]) for e in by_phase["M"]
             if e["name"] == "thread_name"}
    assert set(slices) <= named
    # Each arrow has both ends, in slices, and does not lead backward.
    flows = defaultdict(dict)
    for phase in "stf":
        for e in by_phase[phase]:
            assert phase not in flows[e["id"]], "an end comes twice"
            flows[e["id"]][phase] = e
            assert any(s[0] <= e["ts"] <= s[1] + 0.001
                       for s in slices[e["pid"], e["tid"]]), e
    for flow in flows.values():
        assert {"s", "f"} <= set(flow), flow
        assert flow["s"]["ts"] <= flow["f"]["ts"]
        assert flow["s"]["pid"] == flow["f"]["pid"]
    entries = len(by_phase["X"])
    assert len(text) <= ENTRY_BYTES * (entries + 50), (len(text), entries)
    return data, by_phase, flows


def names_of(by_phase):
    return {e["pid"]: e["args"]["name"] for e in by_phase["M"]
            if e["name"] == "process_name"}


def test_a_timeline_of_three_nodes(trio, tmp):
    t = trio(servers=2, agents=3)
    job = rounds(t, tmp, 20)
    path = tmp / "trace.json"
    parts = defaultdict(int)
    with job:
        for k in t.ask("keys", "job")["keys"]:
            parts[k["name"]] += k["parts"]
        answer = t.ask("trace", "job", "-o", str(path))
        data, by_phase, flows = check_file(path)
    names = names_of(by_phase)
    assert [n for n in sorted(names.values())
            if not n.startswith("sched ")] == [
        "agent node0", "agent node1", "agent node2", "server ps0",
        "server ps1"]
    assert len(names) == 6
    # Of each rank and each round of a partition, from the push to the value.
    assert len(flows) == 20 * 3 * sum(parts.values())
    assert all("t" in f for f in flows.values())
    assert answer["flows"] == len(flows)
    assert answer["events"] == len(data["traceEvents"])
    assert answer["bytes"] == path.stat().st_size
    # By way of the server, within the errors of both clocks.
    errors = [c["error_ns"] / 1000 for c in data["otherData"]["clocks"]]
    for f in flows.values():
        assert names[f["t"]["pid"]].startswith("server ")
        error = errors[f["t"]["pid"] - 1] + errors[f["s"]["pid"] - 1] + 1
        assert f["s"]["ts"] - error <= f["t"]["ts"] <= f["f"]["ts"] + error
    found = defaultdict(int)
    for e in by_phase["X"]:
        found[e["cat"], e["name"]] += 1
    assert found["op", "pushpull w"] == found["op", "pushpull fc1.bias"] == 60
    assert found["op", "barrier"] == 3
    assert found["send", "send w"] == found["value", "value w"] == \
        found["push", "push w"] == 60 * parts["w"]
    assert found["gather", "gather w"] == 20 * parts["w"]
    assert found["phase", "running"] == 1
    assert found["barrier", "barrier"] == 1
    assert len(data["otherData"]["clocks"]) == 6
    for c in data["otherData"]["clocks"]:  # One clock, in truth.
        assert abs(c["offset_ns"]) <= c["error_ns"] + 50_000_000
    t.await_empty()


SPANS = """
    kv = pskv.create('dist_sync')
    w = np.zeros(1000, 'f4')
    kv.init('w', w)
    for i in range(5):
        with kv.span('step'):
            with kv.span('forward'):
                time.sleep(.002)
            kv.pushpull('w', w + 1, out=w)
    for name in ('not good', 'x' * 64, '', *('n%d' % i for i in range(63))):
        try:
            with kv.span(name):
                pass
        except pskv.Error as e:
            print(e, flush=True)
    with kv.span('n61'):
        time.sleep(.03)  # So it leaves with all before it.
    print('ready', flush=True)
    sys.stdin.readline()
    kv.close()
"""


def spans_of(t, path):
    """Slices of ranks' spans by rank, and those of their operations."""
    t.ask("trace", "digits", "-o", str(path))
    _, by_phase, _ = check_file(path)
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in by_phase["M"]
              if e["name"] == "thread_name"}
    spans, ops = defaultdict(list), defaultdict(list)
    for e in by_phase["X"]:
        track = tracks[e["pid"], e["tid"]]
        if e["cat"] == "span":
            assert track == f"rank {e['args']['rank']} spans"
            spans[e["args"]["rank"]].append(e)
        elif e["cat"] == "op":
            ops[int(track.removeprefix("rank "))].append(e)
    return spans, ops


def is_within(inner, outer):
    return outer["ts"] <= inner["ts"] and \
        inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]


def test_spans_of_programs_are_beside_their_operations(trio, tmp):
    t = trio(servers=1, agents=2)
    job = Programs(t, "digits", 4)
    try:
        job.python(SPANS)
        for rank in range(4):
            for text in ("span 'not good': a name has 1 to 63 characters",
                         "span 'xxx", "span '': a name has",
                         "span 'n62': this worker has 64 others"):
                assert text in job.line(rank)
            assert job.line(rank) == "ready"
        found = support.wait_for(
            lambda: (s := spans_of(t, tmp / "trace.json")) and len(s[0]) == 4
            and all(len(some) == 5 + 5 + 62 + 1 for some in s[0].values())
            and s, "spans of 4 ranks")
        for rank, spans in found[0].items():
            named = defaultdict(list)
            for e in spans:
                named[e["name"]].append(e)
            assert len(named["step"]) == len(named["forward"]) == 5
            assert max(e["dur"] for e in named["n61"]) >= 30_000
            rounds = [e for e in found[1][rank] if e["name"] == "pushpull w"]
            assert len(rounds) == 5
            for inner in named["forward"] + rounds:
                assert any(is_within(inner, s) for s in named["step"])
        for process in job.processes.values():
            process.stdin.write("\n")
            process.stdin.flush()
        job.wait_all()
    finally:
        job.close()
    t.await_empty()


@pytest.mark.parametrize("slow", [0, 2])
def test_a_slow_worker_is_named(trio, tmp, slow):
    t = trio(servers=1, agents=3)
    with rounds(t, tmp, 10, slow):
        answer = t.ask("trace", "job")
        code, out, err = t.psctl("trace", "job")
    assert code == 0 and err == ""
    assert answer["slowest"] == slow and answer["events"] == 0
    rows = {r["rank"]: r for r in answer["ranks"]}
    assert [r["node"] for r in answer["ranks"]] == ["node0", "node1", "node2"]
    assert {r["rounds"] for r in answer["ranks"]} == {20}
    assert rows[slow]["last"] >= 18 and rows[slow]["longest_s"] > SLOW_S / 2
    assert rows[slow]["cost_s"] > 20 * SLOW_S / 2
    assert f"rank {slow} (node{slow}) is the slowest: last in " in out, out
    t.await_empty()


def test_equal_workers_are_not_blamed(trio, tmp):
    t = trio(servers=1, agents=1)
    with rounds(t, tmp, 10, size=1):
        assert t.ask("trace", "job")["slowest"] is None
        assert "no round of two ranks" in t.psctl("trace", "job")[1]
    t.await_empty()


def test_rings_and_file_are_bounded(trio, tmp):
    """More rounds than a ring has room for: the newest are there."""
    t = trio(servers=1, agents=1)
    path = tmp / "trace.json"
    with Job(t, 1) as job:
        keys = [job.key(f"k{i}", "float32", 8) for i in range(200)]
        names = " ".join(map(str, keys))
        job.tell(f"rounds count 100 1 0 {names}")
        answer = t.ask("-o", str(path), "trace", "job")
        data, by_phase, flows = check_file(path)
    for m in answer["members"]:
        assert m["entries"] <= ENTRIES
    assert max(m["entries"] for m in answer["members"]) == ENTRIES
    rounds_seen = {e["args"]["round"] for e in by_phase["X"]
                   if e["cat"] == "op"}
    assert 100 in rounds_seen and 1 not in rounds_seen
    assert len(flows) > 1000
    assert path.stat().st_size < 3 * ENTRIES * ENTRY_BYTES
    t.await_empty()


def test_members_that_are_gone_are_left_out(trio, tmp):
    t = trio(servers=2, agents=2)
    job = rounds(t, tmp, 3, size=2)
    t.daemons["node1"].process.send_signal(19)
    try:
        code, out, err = t.psctl("-w", "json", "trace", "job")
        assert code == 3
        assert "agent node1 does not answer; the trace lacks it" in err
        members = json.loads(out)["members"]
        assert [m["name"] for m in members if not m["missing"]][1:] == [
            "ps0", "ps1", "node0"]
        assert len(members) == 5 and members[4]["entries"] == 0
    finally:
        t.daemons["node1"].process.send_signal(18)
    job.close()
    t.await_empty()


def test_wrong_usage_and_errors(trio, tmp):
    t = trio(servers=1, agents=1)
    for words in (("trace",), ("trace", "a", "b"), ("trace", "")):
        assert t.psctl(*words)[0] == 2
    assert t.psctl("trace", "none")[0] == 4
    with Job(t, 1):
        code, _, err = t.psctl("-o", str(tmp / "no" / "file"), "trace", "job")
        assert code == 1 and "No such file" in err
    t.await_empty()


@needs_root
def test_a_token_for_a_job_gives_no_entry_of_another(trio, tmp):
    t = trio(servers=1, agents=1, options=["control.read=token"])
    local = f"unix:{t.control}"
    t.tools = local
    with Job(t, 2, "mine") as mine, Job(t, 2, "other") as other:
        for job in (mine, other):
            key = job.key("w", "float32", 8)
            job.tell(f"rounds count 5 1 0 {key}")
        token = tmp / "token"
        token.touch(0o600)
        token.write_text(t.psctl("token", "issue", "--rights", "read", "--job",
                                 "mine", endpoint=local)[1])
        os.chown(token, NOBODY, NOBODY)
        tmp.chmod(0o755)

        def run(*words):
            done = subprocess.run(
                [support.program("psctl"), "-e", t.endpoint, "-w", "json",
                 *words], capture_output=True, text=True, check=False,
                timeout=support.PATIENCE, user=NOBODY, group=NOBODY,
                extra_groups=[], cwd="/", env=support.clean_env())
            return done.returncode, done.stdout, done.stderr

        assert run("trace", "mine")[0] == 77
        assert run("--token", str(token), "trace", "other")[0] == 77
        code, out, err = run("--token", str(token), "trace", "mine")
        assert code == 0, err
        found = {m["name"]: m["entries"]
                 for m in json.loads(out)["members"]}
        # An operation, its sending and the value, of each rank or round.
        assert found["node0"] == 2 * 5 + 5 + 5, found
        both = t.psctl("-w", "json", "trace", "other", endpoint=local)[1]
        assert {m["name"]: m["entries"]
                for m in json.loads(both)["members"]} == found
    t.await_empty()


# ------------------------------------------------------------------------ clocks


class Fake:
    """A scheduler whose members have clocks of their own. Each round takes
    10 ms; rank 1 begins 5 ms after rank 0."""

    OFFSETS = {"node0": 5_000_000_000_000, "node1": -3_000_000_000,
               "ps0": 77_000_000_000}
    NAMES = ["sched", "ps0", "node0", "node1"]
    BASE = 10**12  # Of the scheduler's clock.

    def __init__(self):
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(1)
        self.listener.settimeout(support.PATIENCE)
        self.endpoint = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.asked = 0
        threading.Thread(target=self.serve, daemon=True).start()

    def entries(self, name):
        kinds = wire.ENUMS["trace_kind"]
        ops = wire.ENUMS["op"]
        out = []

        def add(kind, at_us, length_us, round_, peer, op=0):
            out.append([kinds[kind], op,
                        self.BASE + 1000 * at_us + self.OFFSETS[name],
                        1000 * length_us, round_, 32, 0, 0, peer])

        for r in range(1, 11):
            start = 10_000 * r
            for slot in (0, 1):
                at = start + 5000 * slot
                if name == f"node{slot}":
                    add("op", at, 9000 - 5000 * slot, r, slot,
                        ops["pushpull"])
                    add("send", at + 100, 0, r, 9)
                    add("value", start + 8000, 0, r, 9)
                if name == "ps0":
                    add("push", at + 500, 100, r, slot)
        return out

    def answer(self, m, number):
        if m["member"] == 0:
            return wire.message(
                "trace_entries", now_ns=self.BASE, first=0, next=0, count=0,
                role=1, name="sched", servers=1, agents=2,
                asked_ns=self.BASE, answered_ns=self.BASE)
        name = self.NAMES[m["member"]]
        entries = self.entries(name)
        first = min(m["first"], len(entries))
        some = entries[first:first + 7]
        # Answers take 1 to 4 ms, and the time is taken somewhere within.
        asked = self.BASE + 10**9 + number * 10**7
        took = (1 + number % 4) * 10**6
        return wire.message(
            "trace_entries", first=first, next=first + len(some),
            count=len(entries), entries=some, name=name,
            role=2 if name == "ps0" else 3, node=9 if name == "ps0" else 0,
            servers=1, agents=2, asked_ns=asked, answered_ns=asked + took,
            now_ns=asked + took * (number % 3) // 2 + self.OFFSETS[name])

    def serve(self):
        conn, _ = self.listener.accept()
        self.listener.close()
        conn.settimeout(support.PATIENCE)
        end = wire.message("query_end", cluster="fake", epoch=1,
                           uptime_ns=10**9)
        fields = {name: {f["id"]: f["name"] for f in m["fields"]}
                  for name, m in wire.MESSAGES.items()}
        try:
            while True:
                code, header, _ = wire.read_frame(conn)
                if code == wire.MESSAGES["hello"]["code"]:
                    conn.sendall(wire.message("welcome", protocol=1,
                                              name="sched", instance=7,
                                              resumed=False))
                elif code == wire.MESSAGES["query"]["code"]:
                    conn.sendall(wire.message(
                        "key_row", job="j", key=0, name='a "key"\\', dtype=0,
                        count=8, server="ps0", parts=1, bytes=32) + end)
                else:
                    self.asked += 1
                    got = {fields["trace_get"].get(k): v for k, v in
                           wire.unpack(header)[0].items()}
                    got.setdefault("member", 0)
                    conn.sendall(self.answer(got, self.asked) + end)
        except (OSError, EOFError):
            conn.close()


def test_clocks_are_corrected(tmp):
    """Those of three hosts are hours apart; the errors stay below half the
    time of the fastest answer."""
    fake = Fake()
    path = tmp / "trace.json"
    done = subprocess.run(
        [support.program("psctl"), "-e", fake.endpoint, "-w", "json", "-o",
         str(path), "trace", "j"], capture_output=True, text=True, check=False,
        timeout=support.PATIENCE, env=support.clean_env())
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    members = {m["name"]: m for m in answer["members"]}
    for name, offset in Fake.OFFSETS.items():
        m = members[name]
        error = abs(m["clock_s"] - offset / 1e9)
        assert m["clock_error_s"] <= 0.0005 and error <= 0.0005 + 1e-6, m
    assert answer["slowest"] == 1 and answer["flows"] == 20
    _, by_phase, flows = check_file(path)
    assert {e["name"] for e in by_phase["X"] if e["cat"] == "op"} == {
        'pushpull a "key"\\'}
    for f in flows.values():
        assert f["s"]["ts"] - 1000 < f["t"]["ts"] < f["f"]["ts"] + 1000
        assert 300 - 1000 < f["t"]["ts"] - f["s"]["ts"] < 500 + 1000
    ranks = {r["rank"]: r for r in answer["ranks"]}
    assert ranks[1]["last"] == 10
    assert abs(ranks[1]["cost_s"] - 10 * 0.005) <= 10 * 0.001


# Seconds by which the clocks of these are ahead, as those of hosts that were
# booted at other times.
AHEAD = {"node0": 100_000, "node1": 5_000, "node2": 259_200, "ps0": 7_000}
IN_TIME = ["unshare", "--time", "--fork", "--kill-child"]


@pytest.fixture
def apart(tmp):
    """The command that starts a daemon with the clock of its node."""
    if subprocess.run([*IN_TIME, "--monotonic=1", "true"], capture_output=True,
                      check=False).returncode != 0:
        pytest.skip("no time namespaces here")
    holders, cases = [], []
    for name, seconds in AHEAD.items():
        holder = subprocess.Popen(
            [*IN_TIME, f"--monotonic={seconds}", "sh", "-c",
             "echo $$; exec sleep infinity"], stdout=subprocess.PIPE, text=True)
        holders.append(holder)
        cases.append(f"*node.name={name}*) exec nsenter --time=/proc/"
                     f"{int(holder.stdout.readline())}/ns/time \"$@\";;")
    script = tmp / "enter"
    script.write_text("#!/bin/sh\ncase \"$*\" in\n" + "\n".join(cases) +
                      "\nesac\nexec \"$@\"\n")
    script.chmod(0o755)
    yield [str(script)]
    for holder in holders:
        holder.kill()
        holder.communicate()


def test_clocks_of_daemons_are_corrected(trio, tmp, apart):
    """Each arrow goes by way of a server of another clock, within the errors
    of both."""
    t = trio(servers=2, agents=3, agent_command=apart, server_command=apart)
    path = tmp / "trace.json"
    with rounds(t, tmp, 10, slow=2):
        answer = t.ask("trace", "job", "-o", str(path))
    assert answer["slowest"] == 2
    for m in answer["members"]:
        error = abs(m["clock_s"] - AHEAD.get(m["name"], 0))
        assert error <= m["clock_error_s"] + 1e-6, m
    data, _, flows = check_file(path)
    errors = [c["error_ns"] / 1000 for c in data["otherData"]["clocks"]]
    assert len(flows) > 0
    for f in flows.values():
        error = errors[f["t"]["pid"] - 1] + errors[f["s"]["pid"] - 1] + 1
        assert f["s"]["ts"] - error <= f["t"]["ts"] <= f["f"]["ts"] + error
    t.await_empty()
