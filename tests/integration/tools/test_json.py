# SPDX-License-Identifier: Apache-2.0
"""Answers of `psctl -w json` have the fields of docs/json.md, of their types,
and no other ones."""
import json
import re
import socket
import subprocess
import sys

import pytest
import trio as support
from trio import Job, wait_for

PAGE = (support.SOURCE / "docs/json.md").read_text()
COUNTS = {"count", "bytes"}
NUMBERS = {"seconds", "number", "time"}


def tables():
    """name -> field -> (type, may be left out)"""
    found = {}
    for section in re.split(r"^### ", PAGE, flags=re.M)[1:]:
        name = re.match(r"`(\w+)`\n", section).group(1)
        assert name not in found or name in ("stall", "token")
        rows = re.findall(r"^\| `(\w+)` \| ([^|]+?) \| ([^|\n]*)\|$", section,
                          re.M)
        assert rows, name
        fields = {f: (t.replace("`", ""), m.startswith("optional"))
                  for f, t, m in rows}
        # An answer and an object may have one name.
        found["answer_" + name if section_is_answer(name, section)
              else name] = fields
    return found


def section_is_answer(name, section):
    return PAGE.index("### " + section) < PAGE.index("## Objects")


TABLES = tables()
OBJECTS = {n for n in TABLES if not n.startswith("answer_")}


class Checker:
    """Compares values with the tables, and notes each field that it has
    seen."""

    def __init__(self):
        self.seen = set()

    def value(self, where, kind, value):
        if kind.endswith(" or null"):
            if value is None:
                return
            kind = kind.removesuffix(" or null")
        if kind == "text":
            assert isinstance(value, str), where
        elif kind == "flag":
            assert isinstance(value, bool), where
        elif kind in COUNTS:
            assert isinstance(value, int) and not isinstance(value, bool), where
        elif kind in NUMBERS:
            assert isinstance(value, (int, float)) \
                and not isinstance(value, bool), where
        elif kind == "list of texts":
            assert all(isinstance(v, str) for v in value), where
        elif kind.startswith("list of "):
            assert isinstance(value, list), where
            for one in value:
                self.object(where, kind.removeprefix("list of "), one)
        else:
            self.object(where, kind, value)

    def object(self, where, table, value, more=()):
        fields = {}
        for name in (*more, table):
            fields.update({f: (*TABLES[name][f], name) for f in TABLES[name]})
        assert set(value) <= set(fields), \
            f"{where}: docs/json.md lacks {set(value) - set(fields)}"
        for field, (kind, optional, name) in fields.items():
            if field not in value:
                assert optional, f"{where}: {name} has no {field}"
                continue
            self.seen.add((name, field))
            self.value(f"{where}.{field}", kind, value[field])

    def answer(self, table, text, scheduler=True):
        value = json.loads(text)
        self.object(table, "answer_" + table, value,
                    ("answer_answer",) if scheduler else ())
        return value


def run(*words, codes=(0, 3)):
    done = subprocess.run(
        [support.program("psctl"), "-w", "json", *map(str, words)],
        capture_output=True, text=True, timeout=support.PATIENCE, check=False,
        env=support.clean_env())
    assert done.returncode in codes, done.stderr
    return done.stdout


def ask(check, t, table, *words):
    code, out, err = t.psctl("-w", "json", *words)
    assert code in (0, 3), err
    return check.answer(table, out)


def ask_about_a_job(check, t):
    """While two workers train."""
    with Job(t, 2, "digits") as job:
        key = job.key("w", "float32", 300000)
        job.tell(f"rounds count 3 1 0 {key}")
        ask(check, t, "keys", "keys")
        ask(check, t, "keys", "keys", "digits")
        ask(check, t, "nodes", "nodes")
        ask(check, t, "jobs", "jobs")
        answer = ask(check, t, "rebalance", "--dry-run", "--off", "ps0",
                     "rebalance", "digits")
        assert answer["moves"] and "bytes_then" in answer["servers"][0]
        answer = ask(check, t, "rebalance", "--off", "ps0", "rebalance",
                     "digits")
        assert answer["moves"] and "bytes_then" not in answer["servers"][0]
        ask(check, t, "answer", "set", "digits", "weight", "5")
        ask(check, t, "answer", "log-level", "info")
        code, out, err = t.psctl("-w", "json", "trace", "digits")
        assert code in (0, 3), err
        check.answer("trace", out, False)
        # One waits, the other does not come.
        job[0].say("barrier")
        wait_for(lambda: t.ask("stall")["stalls"], "the wait")
        ask(check, t, "stall", "stall")
        ask(check, t, "status", "--after", "1ms", "status")
        job[1].ask("barrier")
        job[0].hear()


def ask_about_a_lost_rank(check, t):
    """In a job that waits for another process."""
    job = Job(t, 2, "patient", PSKV_ON_LOSS="wait")
    job.key("w", "float32", 10)
    job.tell("sgd learning_rate=0.1")
    out = ask(check, t, "get", "get", "patient")
    assert [row["name"] for row in out["jobs"]] == ["patient"]
    job[1].kill()
    wait_for(lambda: any(j["lost"] for j in t.ask("jobs")["jobs"]), "the loss")
    ask(check, t, "jobs", "jobs")
    out = ask(check, t, "status", "status")
    assert not out["healthy"] and out["problems"]
    ask(check, t, "answer", "jobs", "cancel", "patient")
    for w in job:
        w.kill()
        w.end()


REPORTER = """
import numpy as np
import pskv
kv = pskv.create('dist_sync')
kv.init('w', np.zeros(1, 'f4'))
kv.report('loss', 0.5)
kv.close()
"""


def ask_about_scalars(check, t):
    """The last ones of a job that has ended."""
    subprocess.run(
        [support.program("pslaunch"), "--socket", t.socket(0), "-n", "1", "-s",
         "1", "--name", "scalars", "--", sys.executable, "-c", REPORTER],
        check=True, timeout=support.PATIENCE, env=support.clean_env(
            PYTHONPATH=support.SOURCE / "lib/client/python",
            PSKV_LIBRARY=support.LIBRARY))
    rows = ask(check, t, "jobs", "jobs")["jobs"]
    assert any(row["scalars"] for row in rows if row["name"] == "scalars")


def ask_about_tokens(check, t):
    out = ask(check, t, "token", "--rights", "read,operate", "token", "issue")
    assert "token" in out["tokens"][0]
    number = ask(check, t, "token", "token", "list")["tokens"][0]["id"]
    ask(check, t, "answer", "token", "revoke", number)


def ask_about_events(check, t):
    ask(check, t, "events", "events")
    code, out, _ = t.psctl("-w", "jsonl", "events")
    assert code == 0
    for line in out.splitlines():
        event = json.loads(line)
        assert event.pop("schema") == 1
        check.object("events", "event", event)


def ask_about_private_jobs(check, t, folder):
    (folder / "pskv/jobs").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(folder / "pskv/jobs/mine"))
        s.listen()
        done = subprocess.run(
            [support.program("psctl"), "-e", t.endpoint, "-w", "json",
             "status"], check=False, capture_output=True, text=True,
            env=support.clean_env(XDG_RUNTIME_DIR=folder))
    assert done.returncode in (0, 3), done.stderr
    check.answer("status", done.stdout)


def ask_alone(check, t, folder):
    """Verbs that need no scheduler, or not its answer."""
    check.answer("doctor", run("-e", t.endpoint, "doctor"), False)
    check.answer("explain", run("explain"), False)
    check.answer("explain", run("explain", "PSC_E_NOMEM"), False)
    authority = folder / "pki"
    run("--dir", authority, "pki", "init")
    for name in ("n1", "n2"):
        run("--dir", authority, "--out", folder / name, "--host", "h1", "pki",
            "issue", "agent", name)
    run("--dir", authority, "pki", "revoke", "n2")
    check.answer("pki", run("--dir", authority, "pki", "show"), False)
    env = support.clean_env(XDG_CONFIG_HOME=folder)
    for words in (("-e", "h:1", "context", "set", "a"), ("context", "list")):
        done = subprocess.run(
            [support.program("psctl"), "-w", "json", *words], check=True,
            capture_output=True, text=True, env=env)
    check.answer("context", done.stdout, False)
    check.answer("bench", run("-e", t.endpoint, "--socket", t.socket(0),
                              "--size", "64K", "--keys", "2", "--rounds", "2",
                              "bench"), False)


def test_answers_have_the_fields_of_the_page(trio, tmp):
    pytest.importorskip("numpy")
    t = trio(servers=2, agents=1)
    check = Checker()
    ask_about_a_job(check, t)
    ask_about_a_lost_rank(check, t)
    ask_about_scalars(check, t)
    ask_about_tokens(check, t)
    ask_about_events(check, t)
    code, out, _ = t.psctl("-w", "json", "-n", "1", "top")
    assert code in (0, 3)
    check.answer("status", out)
    ask_about_private_jobs(check, t, tmp)
    ask_alone(check, t, tmp)
    unseen = {(n, f) for n in TABLES for f in TABLES[n]} - check.seen
    assert not unseen, f"no answer has {sorted(unseen)}"
