# SPDX-License-Identifier: Apache-2.0
"""Completion of psctl: candidates, and the scripts in their shells."""
import json
import os
import pty
import re
import subprocess
from pathlib import Path

import pytest
import trio as support
from trio import Job

PSCTL = support.program("psctl")


def candidates(*words, **env):
    """word -> help."""
    done = subprocess.run([PSCTL, "__complete", *words], capture_output=True,
                          text=True, timeout=support.PATIENCE, check=False,
                          env=support.clean_env(**env))
    assert done.returncode == 0, done.stderr
    return dict(line.partition("\t")[::2] for line in done.stdout.splitlines())


def usage(*words):
    words = [*words, "--help"] if words else ["help", "all"]
    return subprocess.run([PSCTL, *words], capture_output=True,
                          text=True, check=True,
                          timeout=support.PATIENCE).stdout


def test_verbs_are_those_of_help():
    verbs = set(re.findall(r"^  ([a-z-]+) ", usage(), re.M))
    assert set(candidates("")) == verbs and len(verbs) > 15
    assert candidates("sta") == {
        "status": "one screen: members, jobs, what is wrong",
        "stall": "waiting operations, since when, missing ranks"}
    assert set(candidates("help", "")) == verbs | {"all"}
    assert candidates("no-such-verb", "") == {}


def test_options_are_those_of_help():
    every = set(re.findall(r"--[a-z-]+", usage()))
    assert {w for w in candidates("-") if w.startswith("--")} == every
    of_set = set(re.findall(r"--[a-z-]+", usage("set")))
    assert {w for w in candidates("set", "--")} == of_set
    assert "--round" in of_set and "--follow" not in of_set
    assert candidates("set", "--rou") == {
        "--round": "first round of each key with NAME's value; not of weight"}
    assert "-n" in candidates("top", "-")


@pytest.mark.parametrize("words, found", [
    (["jobs", ""], {"list", "cancel"}),
    (["token", ""], {"list", "issue", "revoke"}),
    (["pki", "i"], {"init", "issue"}),
    (["pki", "issue", ""], {"sched", "server", "agent", "ctl"}),
    (["pki", "show", ""], set()),
    (["completion", ""], {"bash", "zsh", "fish"}),
    (["context", ""], {"list", "use", "set", "remove"}),
    (["-w", ""], {"table", "json", "jsonl"}),
    (["-w", "j"], {"json", "jsonl"}),
    (["--write=j"], {"--write=json", "--write=jsonl"}),
    (["--sort", "=", "t"], {"traffic"}),
    (["--sort", "="], {"traffic", "rounds", "memory", "name"}),
    (["log-level", "d"], {"debug"}),
    (["log-level", "ps0", ""], {"error", "warning", "notice", "info", "debug",
                                "trace"}),
    (["--rights", ""], {"train", "read", "operate", "admin"}),
    (["--timeout", ""], set()),
    (["--timeout", "5s", "sto"], set()),
    (["--timeout", "5s", "stat"], {"status"}),
    (["set", "job", ""], {"learning_rate", "wd", "rescale_grad",
                          "clip_gradient", "weight"}),
    (["--token", ""], {":files"}),
    (["--tls", "x"], {":folders"}),
    (["explain", "PSKV-000"], {f"PSKV-000{i}" for i in range(1, 10)}),
    ([], None)])
def test_words_are_completed(words, found):
    got = set(candidates(*words))
    if found is None:
        assert got == set(candidates(""))
    elif found == {f"PSKV-000{i}" for i in range(1, 10)}:
        assert got and got <= found
    else:
        assert got == found


def test_contexts_are_completed(tmp):
    (tmp / "pskv").mkdir()
    (tmp / "pskv" / "contexts.json").write_text(json.dumps(
        {"schema": 1, "contexts": {"lab": {"endpoint": "h:1"},
                                   "live": {"endpoint": "h:2"}}}))
    env = {"XDG_CONFIG_HOME": tmp}
    assert candidates("context", "use", "l", **env) == {"lab": "h:1",
                                                        "live": "h:2"}
    assert set(candidates("--context", "la", **env)) == {"lab"}
    assert set(candidates("--context=la", **env)) == {"--context=lab"}


def await_word(word, *words, **env):
    """Candidates with this word of the scheduler, whose answer psctl awaits for
    1 s only."""
    def find():
        found = candidates(*words, **env)
        return found if word in found else None

    return support.wait_for(find, word)


def test_jobs_and_servers_come_from_the_scheduler(trio, tmp):
    t = trio(servers=2, agents=1)
    e = ("-e", t.endpoint)
    with Job(t, 1, "digits"):
        for words in (["keys"], ["stall"], ["jobs", "cancel"], ["rebalance"],
                      ["set"]):
            assert set(await_word("digits", *e, *words, "d")) == {"digits"}
        await_word("digits", f"--endpoint={t.endpoint}", "keys", "")
        await_word("digits", "keys", "", PSKV_SCHED=t.endpoint)
        assert set(await_word("ps0", *e, "rebalance", "digits", "--off",
                              "")) == {"ps0", "ps1"}
        assert {"ps0", "ps1", "node0", "debug"} <= set(
            await_word("node0", *e, "log-level", ""))
    assert candidates("-e", "127.0.0.1:1", "keys", "") == {}


# ------------------------------------------------------------------- scripts


def script(shell):
    return subprocess.run([PSCTL, "completion", shell], check=True, text=True,
                          capture_output=True).stdout


def environment(tmp):
    return support.clean_env(
        PATH=f"{Path(PSCTL).parent}:{os.environ['PATH']}", HOME=tmp,
        XDG_CONFIG_HOME=tmp, TERM="xterm")


def bash(tmp, *words):
    """COMPREPLY for a line of these words, as bash sets the variables."""
    line = " ".join(f"'{w}'" for w in ("psctl", *words))
    text = script("bash") + f"COMP_WORDS=({line}) " \
        f"COMP_CWORD={len(words)}\n_psctl psctl\n" \
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    done = subprocess.run(["bash", "-u"], input=text, text=True, check=True,
                          capture_output=True, env=environment(tmp), cwd=tmp)
    assert done.stderr == ""
    return set(done.stdout.split("\n")) - {""}


def test_bash(tmp):
    (tmp / "some file").touch()
    (tmp / "some folder").mkdir()
    assert bash(tmp, "st") == {"status", "stall"}
    assert bash(tmp, "jobs", "") == {"list", "cancel"}
    assert bash(tmp, "--token", "some") == {"some file", "some folder"}
    assert bash(tmp, "--tls", "some") == {"some folder"}
    assert bash(tmp, "no-such-verb", "") == set()


def test_fish(tmp):
    support.need_program("fish")
    (tmp / "somefile").touch()

    def fish(line):
        done = subprocess.run(
            ["fish", "--no-config", "-c",
             script("fish") + f'\ncomplete -C "{line}"'], check=True,
            text=True, capture_output=True, env=environment(tmp), cwd=tmp,
            timeout=support.PATIENCE)
        return {w.split("\t")[0] for w in done.stdout.splitlines()}

    assert fish("psctl st") == {"status", "stall"}
    assert fish("psctl jobs ") == {"list", "cancel"}
    assert fish("psctl --token some") == {"somefile"}
    assert fish("psctl --write=js") == {"--write=json", "--write=jsonl"}


class Zsh:
    """An interactive zsh on a terminal of its own."""

    def __init__(self, tmp):
        pid, self.master = pty.fork()
        if pid == 0:
            os.chdir(tmp)
            os.execvpe("zsh", ["zsh", "-f", "-i"], environment(tmp))
        self.pid = pid

    def type(self, text, until):
        os.write(self.master, text.encode())
        seen = support.read_until(
            self.master, lambda seen: re.search(until.encode(), seen),
            f"'{until}' after '{text}'").decode(errors="replace")
        assert re.search(until, seen), seen
        return seen

    def end(self):
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        os.close(self.master)


def test_zsh(tmp):
    support.need_program("zsh")
    (tmp / "_psctl").write_text(script("zsh"))
    z = Zsh(tmp)
    try:
        z.type("PS1='> '; autoload -Uz compinit; compinit -u -D; "
               "source <(psctl completion zsh); echo rea''dy\r", "ready\r")
        z.type("psctl statu\t", r"psctl status")
        seen = z.type("\x15psctl jobs \t", r"cancel")
        assert "list" in seen
        z.type("\x15echo do''ne\r", "done\r")
    finally:
        z.end()
