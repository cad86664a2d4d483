# SPDX-License-Identifier: Apache-2.0
"""Job files of pslaunch: the same job as by a command line, options that
replace those of the file, and errors with their place."""
import json
import re

import pytest
from launched import launch
from trio import SOURCE

ALONE = ("--socket", "/nonexistent/agent.sock")
FILE = """# A job on three hosts.
name: fashion
command: [python3, train.py, --epochs, "5"]
launcher: ssh
hosts: ["h1:4", "n[01-02]:2"]
scaling: {workers: 6, servers: 2}
run:
  mode: dist_async
  placement: mxnet
  weight: 200
  env: {A: one two, OMP_NUM_THREADS: 3}
  env_worker: {B: "x"}
  env_server: {C: y}
  sync_dst_dir: /data/job
failure:
  on_worker_loss: wait
  grace: 3s
"""
WORDS = ("-n", "6", "-s", "2", "--name", "fashion", "--launcher", "ssh",
         "--hosts", "h1:4,n[01-02]:2", "--mode", "dist_async", "--placement",
         "mxnet", "--weight", "200", "--env", "A=one two", "--env",
         "OMP_NUM_THREADS=3", "--env-worker", "B=x", "--env-server", "C=y",
         "--sync-dst-dir", "/data/job", "--on-loss", "wait", "--grace", "3s",
         "--dry-run")
COMMAND = ("python3", "train.py", "--epochs", "5")


@pytest.fixture
def job(tmp):
    """Writes a job file; returns its path."""
    def write(text):
        path = tmp / "job.yaml"
        path.write_text(text)
        return str(path)
    return write


def test_a_file_is_the_same_job_as_a_command_line(job):
    want = launch(*WORDS, *COMMAND)
    assert want[0] == 0 and "rank 5" in want[1], want
    path = job(FILE)
    for words in ((path, "--dry-run"), ("--dry-run", path),
                  ("--file", path, "--dry-run"),
                  (f"--file={path}", "--dry-run")):
        assert launch(*words) == want


def test_options_replace_those_of_the_file(job):
    """In front of the file and behind it; variables by their names."""
    want = launch(*WORDS, "-n", "2", "-s", "1", "--mode", "dist_sync", "--env",
                  "A=three", "./other", "--flag")
    assert want[0] == 0
    path = job(FILE)
    assert launch("-n", "2", path, "-s", "1", "--mode", "dist_sync", "--env",
                  "A=three", "--dry-run", "--", "./other", "--flag") == want
    code, out, err = launch(path, "--hosts", "m1", "--dry-run")
    assert code == 0, err
    assert re.findall("^host (.*):$", out, re.M) == ["m1"]


def test_a_job_of_a_file_runs(job, tmp):
    path = job('command: ["echo rank $RANK of $WORLD_SIZE, $WORD"]\n'
               "scaling: {workers: 2}\n"
               "run: {env: {WORD: 'a: b'}, output: plain, output_dir: "
               f"{tmp}/logs}}\n"
               f"daemons: {{socket: {ALONE[1]}}}\n")
    code, out, err = launch(path)
    assert code == 0, err
    assert sorted(out.splitlines()) == ["rank 0 of 2, a: b",
                                        "rank 1 of 2, a: b"]
    assert (tmp / "logs" / "rank-1.log").read_text() == "rank 1 of 2, a: b\n"


def test_behind_two_dashes_a_file_is_a_command(job, tmp):
    path = job("#!/bin/sh\necho the command\n")
    (tmp / "job.yaml").chmod(0o755)
    code, out, err = launch("-n", "1", *ALONE, "--output", "plain", "--", path)
    assert (code, out) == (0, "the command\n"), err


@pytest.mark.parametrize("text, want", [
    ("nam: x\n", "1:1: nam is not an option; did you mean name?"),
    ("scaling:\n  worker: 3\n",
     "2:3: scaling.worker is not an option; did you mean scaling.workers?"),
    ("scaling: {workers: many}\n",
     "1:20: scaling.workers: 'many' is not a number that fits here; write a "
     "whole number from 0 to 4096"),
    ("scaling: {servers: 300}\n", "1:20: scaling.servers: "),
    ("command: ./train\n", "1:10: command takes a list; write [value]"),
    ("failure: {grace: 10}\n", "1:18: failure.grace: "),
    ("failure:\n  on_worker_loss: cry\n", "2:19: failure.on_worker_loss: 'cry'"),
    ("run: {mode: dist_later}\n", "1:13: run.mode: 'dist_later' is no mode; "),
    ("run: {placement: left}\n", "1:18: run.placement: 'left' is no placement"),
    ("run: {log_level: loud}\n", "1:18: run.log_level: 'loud' is no level"),
    ("launcher: pigeon\n", "1:11: launcher: 'pigeon' is no launcher; write "
     "auto, local, ssh, "),
    ("hosts: ['a,,b']\n", "1:9: hosts: a host has no name"),
    ("hosts: [a, a]\n", "1:9: hosts: host a is there twice"),
    ("hosts: [a]\nhostfile: b\n",
     "2:11: hostfile: hosts are given already; keep one of them"),
    ("hostfile: /nonexistent/hosts\n", "1:11: hostfile: /nonexistent/hosts: "),
    ("name: [\n", "2:1: "), ("name: a\nname: b\n", "2:1: "),
    ("run: {env: {A: [1]}}\n", "1:"),
])
def test_errors_have_their_place_and_a_remedy(job, text, want):
    path = job(text)
    code, out, err = launch(path, "-n", "1", "-s", "1", "true")
    assert code == 78 and out == "", err
    assert err.startswith(f"pslaunch: {path}:{want}"), err


def test_all_errors_of_a_file_are_reported(job):
    code, _, err = launch(job("nam: x\nrun: {weight: 2000}\nlauncherr: ssh\n"))
    assert code == 78 and err.count("\n") == 3
    assert err.count("did you mean") == 2


def test_a_file_that_is_not_there_is_named():
    code, _, err = launch("--file", "/nonexistent/job.yaml")
    assert code == 78 and "/nonexistent/job.yaml" in err


def test_a_file_alone_needs_workers_and_a_command(job):
    assert launch(job("name: x\n"))[0] == 2
    code, _, err = launch(job("scaling: {workers: 1}\n"))
    assert code == 2 and "no command to run" in err


def test_the_sample_file_is_current_and_accepted(job):
    code, out, err = launch("--print-config=defaults")
    assert code == 0, err
    assert out == (SOURCE / "conf" / "job.yaml").read_text(), \
        "write it again: pslaunch --print-config=defaults >conf/job.yaml"
    want = launch("-n", "2", "--name", "x", "--private", "--dry-run", "true")
    assert want[0] == 0
    for text in (out, re.sub(r"^( *)#(?=[a-z_]+:)", r"\1", out, flags=re.M)):
        assert launch(job(text), "-n", "2", "--name", "x", "--private",
                      "--dry-run", "true") == want
    assert "scaling" in json.loads(
        launch("--print-config=schema")[1])["properties"]
    code, _, err = launch("--print-config=effective")
    assert code == 2 and "write defaults or schema" in err
