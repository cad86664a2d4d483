# SPDX-License-Identifier: Apache-2.0
"""psctl events on real daemons, and lines of JSON."""
import json
import re
import subprocess
import time

import trio as support
from trio import PATIENCE, Deadline, Job, wait_for

LINE = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ  (\w+) +(\S+) +(.*)$")


def events(t):
    return [(e["of"], e["name"], e["what"]) for e in t.ask("events")["events"]]


def test_events_tell_the_story_of_a_cluster(trio):
    t = trio(servers=1, agents=1)
    begin = time.time()
    with Job(t, 2) as job:
        job.key("w", "float32", 10)
    wait_for(lambda: ("job", "job", "ended") in events(t), "the end of the job")
    found = events(t)
    assert found[0][2] == "started" and found[0][0] == "sched"
    for one in (("server", "ps0", "active"), ("agent", "node0", "active"),
                ("job", "job", "forming"), ("job", "job", "running")):
        assert one in found
    assert found.index(("job", "job", "running")) < \
        found.index(("job", "job", "ended"))
    t.daemons["ps0"].stop(Deadline(), kill=True)
    wait_for(lambda: ("server", "ps0", "gone") in events(t), "the death")
    dead = next(e for e in t.ask("events")["events"] if e["what"] == "gone")
    assert dead["bad"] and "refuses connections" in dead["detail"]
    assert begin - 1 < dead["at"] < time.time() + 1
    code, out, _ = t.psctl("events")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split() == ["TIME", "OF", "NAME", "WHAT", "DETAIL"]
    assert all(LINE.match(line) for line in lines[1:]), out
    assert len(lines) == 1 + len(events(t))


def test_an_ordered_end_is_no_loss(trio):
    """Neither of a server nor of an agent, in events, log and status."""
    t = trio(servers=2, agents=2)
    for name in ("ps1", "node1"):
        t.daemons[name].stop(Deadline())
        wait_for(lambda name=name: any(
            e[1:] == (name, "gone") for e in events(t)), f"the end of {name}")
    found = [e for e in t.ask("events")["events"]
             if e["name"] in ("ps1", "node1")]
    assert not any(e["bad"] for e in found), found
    ends = [e["detail"] for e in found if e["what"] == "gone"]
    assert ends == ["it was shut down in good order"] * 2
    log = t.sched.text()
    assert "server ps1 is shutting down" in log
    assert "agent node1 is shutting down" in log
    assert " warning " not in log, log
    code, out, _ = t.psctl("status")
    assert code == 0 and "!" not in out, out


def test_lost_ranks_and_changes_by_users_are_events(trio):
    t = trio(servers=1, agents=1)
    with Job(t, 2) as job:
        job.key("w", "float32", 10)
        job[1].kill()
        wait_for(lambda: ("rank", "job", "lost") in events(t), "the loss")
        code, _, err = t.psctl("jobs", "cancel", "job")
        assert code == 0, err
        job[0].kill()
    wait_for(lambda: ("job", "job", "failed") in events(t), "the failure")
    assert ("operator", "job", "cancelled") in events(t)


def test_follow_prints_events_as_they_happen(trio):
    t = trio(servers=1, agents=1)
    p = subprocess.Popen(
        [support.program("psctl"), "-e", t.endpoint, "-w", "jsonl", "--follow",
         "events"], stdout=subprocess.PIPE,
        env=support.clean_env(), preexec_fn=support.die_with_parent)
    text = b""

    def lines():
        return [json.loads(line) for line in text.split(b"\n")[:-1]]

    def await_event(what):
        nonlocal text
        text = support.read_until(
            p.stdout.fileno(), lambda seen: re.search(
                rb'"what": ?"%s".*\n' % what.encode(), seen),
            f"the event '{what}'", seen=text)
        assert what in [e["what"] for e in lines()], text

    try:
        # All of the first look, one a line.
        await_event("started")
        with Job(t, 1, "later"):
            pass
        await_event("ended")
        seen = lines()
        assert seen[-1]["name"] == "later" and seen[-1]["schema"] == 1
        numbers = [e["number"] for e in seen]
        assert numbers == sorted(set(numbers))
        t.sched.stop(Deadline(), kill=True)
        assert p.wait(PATIENCE) == 69
    finally:
        p.kill()
        p.wait()
        p.stdout.close()


def test_every_answer_is_one_line_of_json(trio):
    t = trio(servers=1, agents=1)
    for verb in ("status", "nodes", "jobs", "keys", "stall"):
        code, out, err = t.psctl("-w", "jsonl", verb)
        assert code in (0, 3), err
        assert out.count("\n") == 1 and out.endswith("\n")
        assert json.loads(out)["schema"] == 1
    code, _, err = t.psctl("-w", "xml", "nodes")
    assert code == 2 and "give table, json or jsonl" in err
