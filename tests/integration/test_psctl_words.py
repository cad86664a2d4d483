# SPDX-License-Identifier: Apache-2.0
"""Help of psctl, and its display of changing values."""
import json
import os
import pty
import re
import select
import signal
import subprocess

import pytest
import trio as support
from trio import Job


def run(*words, **env):
    done = subprocess.run([support.program("psctl"), *words],
                          capture_output=True, text=True, check=False,
                          timeout=support.PATIENCE,
                          env=support.clean_env(**env))
    return done.returncode, done.stdout, done.stderr


VERBS = ["status", "jobs", "nodes", "keys", "stall", "set", "rebalance",
         "bench", "pki", "enroll", "log-level", "trace", "context", "help",
         "completion"]


def test_bare_psctl_shows_how_it_is_used():
    code, out, err = run()
    assert code == 2 and out == ""
    for word in VERBS + ["usage:"]:
        assert word in err


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_help(verb):
    code, out, err = run("help", verb)
    assert code == 0 and err == ""
    assert out.startswith("usage: psctl [OPTION]... " + verb)
    assert run(verb, "--help") == (0, out, "")
    assert run("--help", verb) == (0, out, "")
    for number in (0, 1, 2, 3, 4, 69, 75, 77):
        assert re.search(rf"\b{number} [a-z]", out), number


def test_help_lists_all_verbs():
    code, out, _ = run("help")
    assert code == 0 and run("--help") == (0, out, "")
    listed = re.findall(r"^  ([a-z-]+) ", out, re.M)
    every = set(re.findall(r"^  ([a-z-]+) ", run("help", "all")[1], re.M))
    assert set(listed) | {"help"} == every and set(VERBS) <= every
    assert len(listed) == len(set(listed))
    # One screen.
    assert len(out.splitlines()) <= 25
    assert max(map(len, out.splitlines())) <= 80
    assert run("help", "a", "b")[0] == 2


@pytest.mark.parametrize("word, meant", [
    ("stats", "status"), ("node", "nodes"), ("stal", "stall"),
    ("stat", "status"), ("comp", "completion"), ("rebalence", "rebalance"), ("halp", "help")])
def test_misspelt_verb_suggests_the_nearest(word, meant):
    code, out, err = run(word)
    assert code == 2 and out == ""
    assert err == f"psctl: no verb '{word}'; did you mean {meant}?\n"
    assert run("help", word)[0] == 2


def own_options(text):
    """Option of verbs in a help -> the words behind its verb that it is for;
    None: all."""
    return {name: of.split(", ") if of else None for name, of in re.findall(
        r"^ +(?:-., )?(--[a-z-]+)\S*(?: [A-Z]\S*)? *(?:of ([a-z, ]+):)?",
        text[:text.index("  -e, --endpoint")], re.M)}


def test_options_of_other_verbs_are_refused():
    """An option that has no effect there would mislead: psctl --dry-run jobs
    cancel must not cancel."""
    everything = run("help", "all")[1]
    forms = [(m[0], m[1]) for m in re.findall(
        r"^  ([a-z][a-z-]*)(?: ([a-z]+)\b)?", everything, re.M)]
    assert ("jobs", "cancel") in forms and ("pki", "show") in forms
    every = own_options(everything)
    assert "--dry-run" in every and "--watch" in every
    for verb, word in forms:
        own = own_options(run("help", verb)[1])
        assert own.keys() <= every.keys(), verb
        for option in every:
            if option not in own or (own[option] is not None
                                     and word not in own[option]):
                value = [] if option in (
                    "--dry-run", "--watch", "--force", "--follow", "--batch"
                ) else {"--ttl": ["1s"], "--after": ["1s"], "--rights": ["read"],
                        "--sort": ["name"]}.get(option, ["4"])
                code, out, err = run(verb, *[word] * (word != ""), option, *value)
                where = verb + (" " + word if option in own and word else "")
                assert (code, out, err) == (
                    2, "", f"psctl: {option}: {where} has no such option; see "
                    f"psctl help {verb}\n")


def test_watch_repeats_the_output(trio):
    t = trio(servers=1, agents=1)
    p = subprocess.Popen(
        [support.program("psctl"), "-e", t.endpoint, "--watch=50ms",
         "--no-headers", "nodes"], stdout=subprocess.PIPE, text=True,
        env=support.clean_env())
    try:
        lines = [p.stdout.readline() for _ in range(12)]
        assert sum(line.startswith("server") for line in lines) == 3
        assert "" not in lines and "\n" in lines
    finally:
        p.send_signal(signal.SIGTERM)
        p.wait(support.PATIENCE)
        p.stdout.close()
    for words in (("--watch", "bench"), ("--watch", "jobs", "cancel", "x"),
                  ("--watch=0", "nodes"), ("--watch=x", "nodes")):
        assert t.psctl(*words)[0] == 2, words


def on_terminal(argv, **env):
    """Output of `argv` to a terminal that is its standard error."""
    master, slave = pty.openpty()
    p = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=slave,
                         env=support.clean_env(**env))
    os.close(slave)
    seen = b""
    deadline = support.Deadline(support.PATIENCE * 2)
    while True:
        select.select([master], [], [], deadline.left("the end of " + argv[0]))
        try:
            data = os.read(master, 65536)
        except OSError:  # The last writer is gone.
            break
        if not data:
            break
        seen += data
    os.close(master)
    out = p.stdout.read()
    p.stdout.close()
    assert p.wait(support.PATIENCE) == 0, seen
    return out.decode(), seen.decode()


def test_bench_has_progress_on_a_terminal_alone(trio):
    t = trio(servers=1, agents=1)
    argv = [support.program("psctl"), "-e", t.endpoint, "--socket",
            t.socket(0), "--workers", "1", "--size", "64KiB", "--keys", "1",
            "--rounds", "3", "bench"]
    out, seen = on_terminal(argv)
    assert out.startswith("1 worker on this node, 1 server; 1 key of")
    assert "psctl: bench: round " in seen and " of 6" in seen
    assert seen.endswith("\r\x1b[K")
    done = subprocess.run(argv, capture_output=True, text=True, check=False,
                          timeout=support.PATIENCE, env=support.clean_env())
    assert done.returncode == 0 and done.stderr == ""


def test_nodes_have_rates(trio):
    t = trio(servers=1, agents=1)
    with Job(t, 1) as job:
        k = job.key("größe", "float32", 250_000)

        def busy():
            job.tell(f"rounds count 20 1 0 {k}")
            rows = {n["role"]: n for n in t.ask("nodes")["nodes"]}
            server = rows["server"]
            return server["bytes_in_per_s"] > 0 and \
                server["bytes_out_per_s"] > 0 and \
                server["rounds_per_s"] > 0 and server

        server = support.wait_for(busy, "rates of a busy server")
        assert server["bytes_in_per_s"] <= server["bytes_in"]
        code, out, _ = t.psctl("nodes")
        assert code == 0 and out.splitlines()[0].split().count("/S") == 3
        assert "/s in" in t.psctl("status")[1]
        support.wait_for(lambda: all(
            n["bytes_in_per_s"] == 0 for n in t.ask("nodes")["nodes"]),
            "rates that fall", step=0.2)
        # Names in other alphabets, if the terminal can print them.
        argv = ("-e", t.endpoint, "keys")
        assert "größe " in run(*argv, LC_ALL="C.UTF-8")[1]
        assert "gr\\xc3\\xb6\\xc3\\x9fe " in run(*argv, LC_ALL="C")[1]
        answer = json.loads(run(*argv, "-w", "json")[1])
        assert answer["keys"][0]["name"] == "größe"
    t.await_empty()
