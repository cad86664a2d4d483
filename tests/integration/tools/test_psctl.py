# SPDX-License-Identifier: Apache-2.0
"""psctl against a real scheduler, and against peers that answer badly."""
import json
import os
import re
import socket
import subprocess
import sys
import threading

import pytest
import trio as support
import wire
from trio import Job


def run(*words, env=None):
    done = subprocess.run([support.program("psctl"), *words],
                          capture_output=True, text=True,
                          timeout=support.limit(60),
                          env=support.clean_env(**(env or {})), check=False)
    return done.returncode, done.stdout, done.stderr


# ------------------------------------------------------------------ no cluster

def test_help_names_every_verb():
    code, out, err = run("help", "all")
    assert code == 0 and err == ""
    for word in ("status", "jobs", "nodes", "keys", "stall", "cancel", "get",
                 "set", "bench", "rebalance", "--dry-run", "--off", "--timeout",
                 "--no-headers", "PSKV_SCHED"):
        assert word in out
    code, out, _ = run("--version")
    assert code == 0 and out.startswith("psctl ") and "protocol 2" in out


@pytest.mark.parametrize("words", [
    (), ("no-such-verb",), ("-w", "xml", "status"), ("--timeout", "5",
                                                     "status"),
    ("--no-such-option", "status"), ("jobs", "cancel"), ("status", "more"),
    ("bench", "more"), ("--size", "64X", "bench"), ("--keys", "0", "bench"),
    ("--workers", "65", "bench"), ("--rounds", "x", "bench"),
    ("set", "job", "lr=1"), ("--round", "0", "set", "job", "lr=1"),
    ("--round", "5", "set", "job", "lr"), ("--round", "5", "set", "job"),
    ("--round", "5", "set", "job", "lr=x"), ("set",),
    ("--round", "5", "set", "job", "lr", "x"), ("set", "job", "weight"),
    ("set", "job", "lr", "1"), ("set", "job", "weight", "0"),
    ("set", "job", "weight", "1001"), ("set", "job", "weight", "1.5"),
    ("set", "job", "weight=much"), ("set", "job", "=1"), ("set", "job", "", "1"),
    ("--round", "5", "set", "job", "weight", "9"),
    ("set", "job", "weight", "9", "more"),
    ("keys", "a", "b"), ("rebalance",), ("--off", "", "rebalance", "a"),
    ("--dry-run", "rebalance"), ("--dry-run", "rebalance", "a", "b"), ("-e", "nowhere", "status"), ("keys", "x" * 65),
    ("log-level",), ("log-level", "loud"), ("log-level", "ps0", "loud"),
    ("log-level", "", "info"), ("log-level", "x" * 65, "info"),
    ("log-level", "a", "b", "info"),
    ("keys", "/" + "x" * 64), ("keys", "root/" + "x" * 65),
    ("keys", "u" * 65 + "/x")])
def test_wrong_usage_is_2(words):
    code, out, err = run(*words)
    assert code == 2
    assert out == "" and err.startswith("psctl: ")


def test_no_listener_is_69_with_the_address():
    with support.reserve_port() as nobody:
        port = nobody.getsockname()[1]
        code, out, err = run("-e", f"127.0.0.1:{port}", "status")
    assert code == 69 and out == ""
    assert f"127.0.0.1:{port}" in err and "refused" in err


# Resolution of names as on a host whose resolver is gone: packets go to a
# socket without a reader.
DEAF = """
import socket, subprocess, sys
folder, *command = sys.argv[1:]
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("127.0.0.1", 53))
for name, text in (
        ("resolv.conf", "nameserver 127.0.0.1\\noptions timeout:30\\n"),
        ("nsswitch.conf", "hosts: dns\\n")):
    with open(folder + "/" + name, "w") as f:
        f.write(text)
    subprocess.run(["mount", "--bind", folder + "/" + name, "/etc/" + name],
                   check=True)
print("ready", flush=True)
sys.exit(subprocess.run(command).returncode)
"""


def test_a_silent_resolver_is_69_within_the_time(tmp):
    apart = ["unshare", "--map-root-user", "--mount", "--net"]
    if subprocess.run([*apart, "ip", "link", "set", "lo", "up"], check=False,
                      capture_output=True).returncode != 0:
        pytest.skip("needs namespaces")
    done = subprocess.run(
        [*apart, sys.executable, "-c", DEAF, str(tmp),
         support.program("psctl"), "-e", "sched.example.org:9091",
         "--timeout", "300ms", "status"],
        capture_output=True, text=True, timeout=support.limit(60),
        env=support.clean_env(),
        check=False)  # The resolver alone would take two minutes.
    assert done.stdout == "ready\n", done.stderr
    assert done.returncode == 69
    assert "sched.example.org:9091" in done.stderr
    assert "name resolution" in done.stderr


def test_a_name_that_is_none_is_69():
    code, _, err = run("-e", "no-such-host.invalid:9091", "status")
    assert code == 69 and "no-such-host.invalid:9091" in err


def test_a_silent_peer_is_69_within_the_time():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen(1)
        code, _, err = run("-e", f"127.0.0.1:{s.getsockname()[1]}",
                           "--timeout", "300ms", "status")
    assert code == 69 and "did not answer within 0.3 s" in err


def answering(*answers):
    """A listener that reads one frame before each answer, and closes after an
    empty one. Its port."""
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    s.listen(1)
    s.settimeout(support.PATIENCE)

    def serve():
        conn, _ = s.accept()
        conn.settimeout(support.PATIENCE)
        try:
            for a in answers:
                wire.read_frame(conn)
                conn.sendall(a)
                if not a:
                    conn.close()
            conn.recv(1)
        except (OSError, EOFError):
            pass
        conn.close()
        s.close()

    threading.Thread(target=serve, daemon=True).start()
    return s.getsockname()[1]


WELCOME = wire.message("welcome", protocol=1, name="fake", instance=7,
                       resumed=False)
END = wire.message("query_end", cluster="fake", epoch=3, uptime_ns=10**10)


@pytest.mark.parametrize("answer", [
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    wire.frame(2, b"\xdf\xff\xff\xff\xff"),
    wire.frame(2, b"\xdd\x10\x00\x00\x00"),
    wire.frame(2, b"\x80", header_len=0xffffffff),
    wire.frame(2, b"\x80", payload_len=1 << 62),
    wire.frame(2, b"\x80"),
    wire.frame(17, b"\x80"),
    wire.frame(250, b"\x80"),
])
def test_malformed_replies_are_refused(answer):
    port = answering(answer)
    code, out, err = run("-e", f"127.0.0.1:{port}", "--timeout", "2s",
                         "status")
    assert code == 69 and out == ""
    assert f"127.0.0.1:{port}" in err and err.count("\n") == 1


@pytest.mark.parametrize("answers, cause", [
    ([b""], "it closed the connection"),
    ([WELCOME, b""], "it closed the connection"),
    ([WELCOME], "Connection reset by peer")])  # Most of the query is unread.
def test_cause_of_a_lost_connection_is_printed(answers, cause):
    port = answering(*answers)
    code, out, err = run("-e", f"127.0.0.1:{port}", "jobs")
    assert code == 69 and out == ""
    assert f"cannot reach psched at 127.0.0.1:{port}: {cause};" in err


def test_replies_may_exceed_the_input_buffer():
    rows = [wire.message("job_row", gen=i, name=f"j{i}", uid=0, phase=2,
                         mode=0, on_loss=0, num_workers=2, live_workers=2,
                         slots=1, keys=0, bytes=0, barriers=0, age_ns=0,
                         reason="r" * (i % 200)) for i in range(4000)]
    port = answering(WELCOME, b"".join(rows) + END)
    code, out, err = run("-e", f"127.0.0.1:{port}", "-w", "json", "jobs")
    assert code == 0, err
    assert [j["name"] for j in json.loads(out)["jobs"]] == \
        [f"j{i}" for i in range(4000)]


def test_rejection_is_printed_escaped():
    port = answering(wire.message("reject", error=-5,
                                  text="too old\x1b[31m\n"))
    code, out, err = run("-e", f"127.0.0.1:{port}", "status")
    assert code == 75 and out == ""
    # The decoder has escaped invisible characters.
    assert "too old?[31m?\n" in err and "\x1b" not in err


def test_strings_of_peers_never_reach_the_terminal_raw():
    evil = "a\x1b]0;owned\x07\nb\x9b31m"
    row = wire.message("job_row", gen=1, name=evil, uid=0, phase=2, mode=0,
                       on_loss=0, num_workers=2, live_workers=2, slots=1, keys=0,
                       bytes=0, barriers=0, age_ns=0, reason=evil)
    port = answering(WELCOME, row + END)
    code, out, err = run("-e", f"127.0.0.1:{port}", "jobs")
    assert code == 0, err
    assert out.count("\n") == 2
    assert not any(ord(c) < 32 and c != "\n" or ord(c) > 126 for c in out)
    assert "a\\x1b]0;owned\\x07\\x0ab\\xc2\\x9b31m" in out
    port = answering(WELCOME, row + END)
    code, out, _ = run("-e", f"127.0.0.1:{port}", "-w", "json", "jobs")
    assert code == 0 and "\x1b" not in out
    assert json.loads(out)["jobs"][0]["name"] == evil


def test_rows_in_pieces_and_unknown_rows():
    """Bytes come as the network likes; rows of other kinds are skipped."""
    row = wire.message("stall_row", job="j", what="round 3 of w",
                       waited_ns=41 * 10**9, waiting_ops=7,
                       missing=[[3, 2, "n07"], [5, 1, "n09"]])
    extra = wire.message("key_row", job="j", key=0, name="w", dtype=0,
                         count=1, server="ps0", parts=1, bytes=4)
    port = answering(WELCOME, extra + row + END)
    code, out, _ = run("-e", f"127.0.0.1:{port}", "stall")
    assert code == 3
    assert "rank 3 on n07 (lost), rank 5 on n09" in out and "41.0s" in out


def test_the_sample_of_the_readme_is_printed():
    row = wire.message("stall_row", job="digits", what="key fc1.w round 812",
                       waited_ns=41_300_000_000, waiting_ops=6,
                       missing=[[3, 2, "n07"]])
    port = answering(WELCOME, row + END)
    out = run("-e", f"127.0.0.1:{port}", "stall")[1]
    text = (support.SOURCE / "README.md").read_text()
    sample = text.split("    $ psctl stall\n")[1].split("\n\n")[0]
    assert out.splitlines() == [line[4:] for line in sample.splitlines()]


@pytest.mark.parametrize("state,waited,code", [
    (1, 1, 0), (1, 9, 0), (1, 11, 3), (2, 1, 3), (0, 1, 3), (3, 1, 3)])
def test_stall_has_an_exit_code(state, waited, code):
    row = wire.message("stall_row", job="j", what="round 3",
                       waited_ns=waited * 10**9, waiting_ops=1,
                       missing=[[0, state, "h"]])
    port = answering(WELCOME, row + END)
    assert run("-e", f"127.0.0.1:{port}", "stall", "j")[0] == code
    port = answering(WELCOME, row + END)
    assert run("-e", f"127.0.0.1:{port}", "--after", "500ms", "stall")[0] == 3


def test_endpoint_order():
    """-e before PSKV_SCHED before DMLC_*."""
    def port_of(text):
        return answering(wire.message("reject", error=-9, text=text))

    own, dmlc, given = port_of("own"), port_of("dmlc"), port_of("given")
    env = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": dmlc}
    assert "dmlc" in run("status", env=env)[2]
    env["PSKV_SCHED"] = f"127.0.0.1:{own}"
    assert "own" in run("status", env=env)[2]
    assert "given" in run("-e", f"127.0.0.1:{given}", "status", env=env)[2]


# --------------------------------------------------------------- real daemons

def test_empty_cluster(trio):
    t = trio(servers=2, agents=1)
    code, out, err = t.psctl("status")
    assert code == 0, (out, err)
    assert "1 agent  2 servers  0 jobs" in out and err == ""
    answer = t.ask("status")
    assert answer["healthy"] is True and answer["problems"] == []
    assert answer["cluster"] == "default" and answer["epoch"] >= 1
    nodes = {n["name"]: n for n in answer["nodes"]}
    assert set(nodes) >= {"ps0", "ps1", "node0"}
    assert nodes["ps0"]["address"] == \
        f"127.0.0.1:{t.daemons['ps0'].port}"
    assert t.ask("jobs")["jobs"] == [] and t.ask("keys")["keys"] == []
    assert t.ask("stall")["stalls"] == []
    code, out, _ = t.psctl("--no-headers", "nodes")
    assert code == 0 and "ROLE" not in out and "ps1" in out


def test_no_such_job_is_4(trio):
    t = trio(servers=1, agents=1)
    for words in (("keys", "nope"), ("--dry-run", "rebalance", "nope"),
                  ("stall", "nope"),
                  ("jobs", "cancel", "nope"),
                  ("--round", "9", "set", "nope", "lr=1"),
                  ("set", "nope", "weight", "9")):
        code, out, err = t.psctl(*words)
        assert code == 4 and out == "" and "nope" in err


def test_a_lost_server_is_degraded(trio):
    t = trio(servers=2, agents=0)
    t.daemons["ps1"].stop(support.Deadline(), kill=True)
    support.wait_for(lambda: t.psctl("status")[0] == 3, "status 3")
    code, out, _ = t.psctl("status")
    assert code == 3 and "! server ps1 is" in out


def test_lost_ranks_are_degraded(trio):
    """Also if no rank waits for them, because all are lost."""
    t = trio(servers=1, agents=2)
    job = Job(t, 4, "thin")
    assert t.psctl("status")[0] == 0
    job[2].kill()
    support.wait_for(lambda: t.ask("jobs")["jobs"][0]["ranks_lost"] == 1,
                     "the loss of rank 2")
    code, out, _ = t.psctl("status")
    assert code == 3
    assert "! job thin has lost 1 of 4 ranks: rank 2 on node" in out, out
    for rank in (0, 1, 3):
        job[rank].kill()
    support.wait_for(lambda: t.ask("jobs")["jobs"][0]["live"] == 0,
                     "the loss of all")
    code, out, _ = t.psctl("status")
    assert code == 3 and "lost 4 of 4 ranks: rank 0 on node" in out, out
    row = t.ask("status")["jobs"][0]
    assert [r["rank"] for r in row["lost"]] == [0, 1, 2, 3]
    assert t.psctl("jobs", "cancel", "thin")[0] == 0
    for w in job:
        w.end()
    t.await_empty()


def test_job_is_listed(trio):
    t = trio(servers=2, agents=2)
    with Job(t, 4, "seen") as job:
        w = job.key("fc1.weight", "float32", 1000)
        n = job.key("#7", "int64", 10)
        job.tell(f"rounds count 3 1 0 {w} {n}")
        jobs = t.ask("jobs")["jobs"]
        assert [j["name"] for j in jobs] == ["seen"]
        assert jobs[0]["phase"] == "running"
        assert (jobs[0]["live"], jobs[0]["num_workers"]) == (4, 4)
        assert (jobs[0]["nodes"], jobs[0]["keys"]) == (2, 2)
        assert jobs[0]["bytes"] == 1000 * 4 + 10 * 8
        keys = t.ask("keys", "seen")["keys"]
        assert {(k["kind"], k["name"], k["dtype"], k["count"])
                for k in keys} == {
            ("string", "fc1.weight", "float32", 1000),
            ("integer", "7", "int64", 10)}
        assert sum(k["bytes"] for k in keys) == 1000 * 4 + 10 * 8
        assert {k["server"] for k in keys} <= {"ps0", "ps1"}
        code, out, _ = t.psctl("status")
        assert code == 0 and "seen" in out and "4/4 workers" in out
        code, out, _ = t.psctl("keys")
        assert code == 0 and "OF EVEN" in out
        rows = [line.split()[2:4] for line in out.splitlines()]
        assert ["string", "fc1.weight"] in rows and ["integer", "7"] in rows
    t.await_empty()


def test_uneven_servers_and_the_plan_are_listed(trio):
    """By the classic formula keys 0, 3, 6... lie on the first of 3 servers."""
    t = trio(servers=3, agents=1)
    with Job(t, 1, "lean", PSKV_PLACEMENT="mxnet") as job:
        for i in range(30):
            job.key(f"#{3 * i}", "int64", 1000)
        servers = t.ask("keys", "lean")["servers"]
        assert [(s["server"], s["bytes"], s["of_even"]) for s in servers] == [
            ("ps0", 240_000, 3), ("ps1", 0, 0), ("ps2", 0, 0)]
        code, out, _ = t.psctl("keys", "lean")
        assert code == 0 and "300.0 %" in out and "ps2" in out
        plan = t.ask("--dry-run", "rebalance", "lean")
        moves = plan["moves"]
        assert {m["from"] for m in moves} == {"ps0"}
        assert {m["to"] for m in moves} == {"ps1", "ps2"}
        assert len({(m["key"], m["to"]) for m in moves}) == len(moves)
        assert sum(m["bytes"] for m in moves) <= 160_000
        for s in plan["servers"]:
            assert 0.95 <= s["of_even_then"] <= 1.05
            to = sum(m["bytes"] for m in moves if m["to"] == s["server"])
            gone = sum(m["bytes"] for m in moves if m["from"] == s["server"])
            assert s["bytes_then"] == s["bytes"] + to - gone
        code, out, _ = t.psctl("--dry-run", "rebalance", "lean")
        assert code == 0 and "nothing was moved" in out
        assert any(line.split()[2:4] == ["integer", "3"]
                   for line in out.splitlines())
        assert t.ask("keys", "lean")["servers"] == servers
    with Job(t, 1, "even") as job:
        for i in range(30):
            job.key(f"k{i}", "int64", 1000)
        assert t.ask("--dry-run", "rebalance", "even")["moves"] == []
        code, out, _ = t.psctl("--dry-run", "rebalance", "even")
        assert code == 0 and "are balanced" in out
    t.await_empty()


def test_a_straggler_is_named(trio, tmp):
    t = trio(servers=1, agents=2)
    zeros = tmp / "zeros"
    zeros.write_bytes(bytes(64))
    with Job(t, 4, "slow") as job:
        k = job.key("w", "float32", 16)
        for rank in (0, 1, 2):
            job[rank].ask(f"start a pushpull {k} src={zeros}")

        def row():
            stalls = t.ask("--after", "1ms", "stall", "slow")["stalls"]
            return stalls[0] if stalls and [
                m["rank"] for m in stalls[0]["missing"]] == [3] else None

        found = support.wait_for(row, "a row of psctl stall")
        assert found["missing"][0]["state"] == "live"
        assert found["what"] == "key w round 1"
        code, out, _ = t.psctl("--after", "1ms", "stall", "slow")
        assert code == 3 and "rank 3" in out
        assert t.psctl("--after", "1h", "stall", "slow")[0] == 0
        job[3].ask(f"pushpull {k} src={zeros}")
        for rank in (0, 1, 2):
            job[rank].ask("wait a")
    t.await_empty()


def test_keys_that_a_norm_waits_for_are_named(trio, tmp):
    """No rank is late with the key that is waited for: others are missing."""
    t = trio(servers=2, agents=2)
    zeros = tmp / "zeros"
    zeros.write_bytes(bytes(64))
    with Job(t, 4, "norm") as job:
        keys = {name: job.key(name, "float32", 16) for name in "abcdefg"}
        for k in keys.values():
            job.tell(f"init {k} src={zeros}")
        job.tell("sgd learning_rate=1 clip_global_norm=1")
        job.tell(f"start c pushpull {keys.pop('c')} src={zeros}")

        def row():
            stalls = t.ask("--after", "1ms", "stall", "norm")["stalls"]
            # An agent that has not reported within 1 s is missing itself.
            return stalls[0] if stalls and stalls[0]["also"] and \
                not stalls[0]["missing"] else None

        found = support.wait_for(row, "a row with keys and without ranks")
        assert found["what"].startswith("key c round")
        want = ("gradients of a, b, d, e and 2 more, for the norm of "
                "all keys")
        assert found["also"] == want
        code, out, _ = t.psctl("--after", "1ms", "stall", "norm")
        assert code == 3 and want in out

        def said():
            with pytest.raises(support.WorkerError) as e:
                job[3].ask("wait c timeout=300")
            return f"missing: {want}" in str(e.value)

        support.wait_for(said, "the same in the worker's error")
        for name, k in keys.items():
            job.tell(f"start {name} push {k} src={zeros}")
        for name in (*keys, "c"):
            job.tell(f"wait {name}")
        assert t.ask("stall", "norm")["stalls"] == []
    t.await_empty()


def test_cancel(trio):
    t = trio(servers=1, agents=1)
    job = Job(t, 2, "victim")
    try:
        job[0].say("barrier")
        code, _, err = t.psctl("--reason", "maintenance", "jobs", "cancel",
                               "victim")
        assert code == 0, err
        with pytest.raises(support.WorkerError) as e:
            job[0].hear()
        assert "maintenance" in str(e.value)
        t.await_empty()
        assert re.search(r"warning psched: job victim gen \d+ of uid "
                         rf"{os.getuid()} cancelled by an operator at "
                         rf"local:uid={os.getuid()}", t.sched.text())
        assert t.psctl("jobs", "cancel", "victim")[0] == 4
    finally:
        for w in job:
            w.kill()
            w.end()


# ----------------------------------------------------------------------- bench

def test_bench_measures_and_leaves_nothing(trio):
    t = trio(servers=2, agents=1)
    words = ("--size", "1M", "--keys", "30", "--rounds", "7", "--workers", "3",
             "--socket", t.socket(0), "bench")
    code, out, err = t.psctl("-w", "json", *words)
    assert code == 0, err
    bench = json.loads(out)["bench"]
    assert (bench["workers"], bench["servers"]) == (3, 2)
    assert (bench["keys"], bench["rounds"]) == (30, 7)
    assert bench["bytes"] == (1 << 20) // 30 // 4 * 4 * 30
    seconds = bench["round_s"]
    assert 0 < seconds["least"] <= seconds["median"] <= seconds["p90"] \
        <= seconds["p99"] <= seconds["most"]
    assert bench["bytes_per_s"] == pytest.approx(
        bench["bytes"] / seconds["median"])
    code, out, err = t.psctl(*words)
    assert code == 0, err
    assert "3 workers on this node, 2 servers; 30 keys" in out
    assert "ms a round" in out and "GB/s" in out

    support.wait_for(lambda: [j["phase"] for j in t.ask("jobs")["jobs"]] ==
                     ["ended"] * 2, "the end of both jobs")
    assert bench["job"] in [j["name"] for j in t.ask("jobs")["jobs"]]
    support.wait_for(lambda: all(n["stored"] == 0
                                 for n in t.ask("nodes")["nodes"]
                                 if n["role"] == "server"),
                     "the servers to forget the jobs")


def test_small_keys_that_travel_alone_are_the_same_sums(trio):
    alone = ["network.travel_together=off"]
    t = trio(servers=1, agents=1, server_options=alone, agent_options=alone)
    code, _, err = t.psctl("--size", "200K", "--keys", "100", "--rounds", "3",
                           "--socket", t.socket(0), "bench")
    assert code == 0, err


def test_bench_without_an_agent_is_an_error(trio):
    t = trio(servers=1, agents=1)
    code, out, err = t.psctl("--socket", "/nonexistent/agent.sock", "bench",
                             timeout=f"{support.SLOW:.0f}s")
    assert code == 69 and out == ""
    assert "/nonexistent/agent.sock" in err


def test_a_bench_that_is_stopped_ends_its_job(trio):
    t = trio(servers=1, agents=1)
    p = subprocess.Popen(
        [support.program("psctl"), "-e", t.endpoint, "--rounds", "1000000",
         "--size", "64K", "--keys", "3", "--socket", t.socket(0), "bench"],
        env=support.clean_env(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True)
    try:
        support.wait_for(lambda: [j for j in t.ask("jobs")["jobs"]
                                  if j["phase"] == "running" and
                                  j["keys"] == 3], "the job to run")
        p.terminate()
        out, err = p.communicate(timeout=support.PATIENCE)
    finally:
        p.kill()
        p.wait()
    assert p.returncode == 128 + 15 and out == ""
    assert "stopped" in err
    support.wait_for(lambda: [j["phase"] for j in t.ask("jobs")["jobs"]] ==
                     ["failed"], "the job to fail")
