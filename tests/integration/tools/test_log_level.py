# SPDX-License-Identifier: Apache-2.0
"""psctl log-level on running members."""
import os
import pwd
import signal
import subprocess

import pytest
import trio as support
import wire
from trio import Deadline, Job, wait_for

NOBODY = pwd.getpwnam("nobody").pw_uid
needs_root = pytest.mark.skipif(os.getuid() != 0,
                                reason="only root can become another user")


def as_other_user(t, *words, **env):
    done = subprocess.run(
        [support.program("psctl"), "-e", t.endpoint, *words],
        capture_output=True, text=True, timeout=support.PATIENCE, check=False,
        user=NOBODY, group=NOBODY, extra_groups=[], cwd="/",
        env=support.clean_env(**env))
    return done.returncode, done.stdout, done.stderr


def change(t, *words):
    assert t.psctl("log-level", *words) == (0, "", "")


def test_level_of_one_member_changes(trio):
    t = trio(servers=2, agents=1)
    ps0, ps1 = t.servers()
    change(t, "ps0", "error")
    ps0.await_log("log level is error, was info")
    ps0.process.send_signal(signal.SIGUSR1)  # Lines of the level notice.
    # The signal came before this hello, and so does what it does.
    with wire.connect(ps0.port, seconds=support.PATIENCE) as s:
        s.sendall(wire.hello("agent"))
        assert wire.is_cut(s, support.PATIENCE)
    change(t, "ps0", "notice")
    ps0.await_log("log level is notice, was error")
    assert " state rounds " not in ps0.text()
    assert ps0.state()["residue"] == 0
    for d in (ps1, t.agents()[0]):
        assert "log level" not in d.text()
    assert "log level notice of ps0 set by an operator" in t.sched.text()
    found = [e for e in t.ask("events")["events"] if "log level" in e["what"]]
    assert [e["what"] for e in found] == ["log level error", "log level notice"]
    assert found[0]["detail"].startswith("ps0 by ")


def test_level_of_all_members_changes_while_a_job_trains(trio):
    t = trio(servers=1, agents=2)
    with Job(t, 2) as job:
        key = job.key("w", "float32", 100)
        change(t, "trace")
        for d in t.daemons.values():
            d.await_log("log level is trace, was info")
        job.tell(f"rounds count 5 1 0 {key}")
        change(t, "info")
        for d in t.daemons.values():
            d.await_log("log level is info, was trace")
        job.tell(f"rounds count 5 1 0 {key}")
    t.await_empty()


def test_level_is_that_of_the_options_after_a_reload_and_a_start(trio):
    t = trio(servers=1, agents=0)
    ps0 = t.servers()[0]
    for end in ("reload", "start"):
        change(t, "ps0", "error")
        ps0.await_log("log level is error, was info")
        if end == "reload":
            ps0.process.send_signal(signal.SIGHUP)
            ps0.await_log("options reloaded")
        else:
            ps0.stop(Deadline())
            ps0 = t.launch("ps0")
            ps0.await_ready(Deadline())
        assert ps0.state()["residue"] == 0


def test_members_that_are_not_there_are_errors(trio):
    t = trio(servers=1, agents=0)
    code, out, err = t.psctl("log-level", "ps9", "debug")
    assert code == 1 and out == ""
    assert "no member 'ps9' is there; psctl nodes lists them" in err
    t.servers()[0].stop(Deadline(), kill=True)
    wait_for(lambda: [n for n in t.ask("nodes")["nodes"]
                      if n["name"] == "ps0" and n["state"] != "active"],
             "the loss of ps0")
    code, _, err = t.psctl("log-level", "ps0", "debug")
    assert code == 1 and "member 'ps0' is not connected" in err


@needs_root
def test_levels_are_changed_by_operators_alone(trio, tmp):
    t = trio(servers=1, agents=1, agent_options=["client.mode=0666"])
    t.folder.chmod(0o755)
    support.let_others_read(t.folder.parent)
    code, _, err = as_other_user(t, "log-level", "debug")
    assert code == 77, err
    assert "not allowed: log levels are set by operators" in err
    assert "log level not changed for " in t.sched.text()
    for words, code in ((("--rights", "operate"), 0),
                        (("--rights", "read"), 77),
                        (("--rights", "operate", "--job", "job"), 77)):
        token = tmp / "token"
        token.write_text(t.psctl(*words, "token", "issue")[1])
        os.chown(token, NOBODY, NOBODY)
        token.chmod(0o600)
        tmp.chmod(0o755)
        got, _, err = as_other_user(t, "--token", str(token), "log-level",
                                    "debug")
        assert got == code, (words, err)
    t.servers()[0].await_log("log level is debug, was info")
