# SPDX-License-Identifier: Apache-2.0
"""psctl doctor on real daemons: each finding says what to do."""
import json
import signal

from trio import Deadline, Job, wait_for


def findings(t, *words):
    code, out, err = t.psctl("-w", "json", *words, "doctor")
    assert code in (0, 3, 69), err
    answer = json.loads(out)
    assert answer["schema"] == 1
    assert answer["healthy"] == (code == 0)
    for f in answer["findings"]:
        assert f["level"] in ("ok", "note", "problem")
        assert bool(f["action"]) == (f["level"] != "ok"), f
    return answer["findings"]


def problems(t, *words):
    return [f["text"] for f in findings(t, *words) if f["level"] == "problem"]


def test_a_healthy_cluster_has_no_problem(trio):
    t = trio(servers=1, agents=1)
    assert problems(t) == []
    code, out, _ = t.psctl("doctor")
    assert code == 0
    assert f"ok       psched at {t.endpoint} answers" in out
    # Statements of members are in the rows of nodes.
    for node in t.ask("nodes")["nodes"]:
        assert node["version"] == t.psctl("--version")[1].split()[1]
        assert node["descriptors"] > 0
        assert abs(node["clock_skew_s"]) < 2


def test_dead_and_slow_members_are_problems(trio):
    # The second agent stays: a scheduler that reaches no member at all considers
    # itself cut off, and declares none of them dead.
    t = trio(servers=1, agents=2, options=["heartbeat.suspect_after=500ms",
                                           "heartbeat.dead_after=60s"],
             level="debug")
    # Only then a refused connection proves that its process has ended.
    wait_for(lambda: "server ps0 reached at" in
             (t.folder / "sched.log").read_text(), "the probe of ps0")
    t.daemons["node0"].process.send_signal(signal.SIGSTOP)
    t.daemons["ps0"].stop(Deadline(), kill=True)

    def are_found():
        found = problems(t)
        return all(any(text.startswith(one) for text in found) for one in (
            "server ps0 is gone, last heard ",
            "agent node0 is suspect, last heard ",
            "the cluster has no active server"))

    try:
        wait_for(are_found, "both members")
    finally:
        t.daemons["node0"].process.send_signal(signal.SIGCONT)
    code, out, _ = t.psctl("doctor")
    assert code == 3
    assert "problem  the cluster has no active server\n" \
           "         what to do: start psserver" in out


def test_limits_that_are_near_are_named(trio):
    t = trio(servers=1, agents=1, options=["limits.user.keys=10"],
             server_options=["network.same_host=off"],
             server_command=["prlimit", "--nofile=1024:1024"])
    with Job(t, 1) as job:
        for i in range(9):
            job.key(f"w{i}", "float32", 10)
        wait_for(lambda: any(" of 10 of limits.user.keys" in text
                             for text in problems(t)), "the limit")
        found = problems(t)
        assert "server ps0 may open 1024 descriptors, fewer than 4160" in found
        notes = [f["text"] for f in findings(t) if f["level"] == "note"]
        assert "server ps0 uses TCP even within its host" in notes


def test_lost_ranks_are_problems(trio):
    t = trio(servers=1, agents=1)
    with Job(t, 2) as job:
        job.key("w", "float32", 10)
        job[1].kill()
        wait_for(lambda: "job job has lost 1 of 2 ranks: rank 1 on node0" in
                 problems(t), "the lost rank")
        job[0].kill()


def test_without_a_scheduler_this_host_is_checked(trio):
    t = trio(servers=0, agents=0)
    t.sched.stop(Deadline(), kill=True)
    code, out, err = t.psctl("doctor")
    assert code == 69
    assert "cannot reach psched" in err
    assert "problem  psched does not answer" in out
    assert "this host has " in out


def test_a_server_that_was_stopped_in_good_order_is_no_problem(trio):
    """One that was killed is."""
    t = trio(servers=3, agents=1)

    def state(name):
        return next(n["state"] for n in t.ask("nodes")["nodes"]
                    if n["name"] == name)

    t.daemons["ps2"].stop(Deadline())
    wait_for(lambda: state("ps2") == "gone", "the end of ps2")
    assert t.psctl("status")[0] == 0, t.psctl("status")[1]
    assert problems(t) == []
    t.daemons["ps1"].stop(Deadline(), kill=True)
    wait_for(lambda: state("ps1") == "gone", "the loss of ps1")
    code, out, _ = t.psctl("status")
    assert code == 3 and "! server ps1 is gone" in out.lower(), out
    assert problems(t) and "ps2" not in " ".join(problems(t))


def test_an_agent_of_this_host_is_looked_for_in_its_own_cluster(trio):
    """Not beside the cluster of one job, which -e names."""
    t = trio(servers=1, agents=1)
    assert "this host has" not in t.psctl("doctor")[1]


def test_draining_of_all_servers_is_a_problem(trio):
    """No job starts there any more."""
    t = trio(servers=1, agents=1)
    with Job(t, 1, "old") as job:
        job.key("w", "float32", 1000)
        t.daemons["ps0"].process.send_signal(signal.SIGTERM)
        t.await_node("ps0", "draining", True)
        assert "the cluster has no active server" in problems(t)
        assert t.psctl("doctor")[0] == t.psctl("status")[0] == 3
