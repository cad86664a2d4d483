# SPDX-License-Identifier: Apache-2.0
"""Clusters with a name: psctl context and --context."""
import json
import os
import pwd
import stat
import subprocess

import pytest
import trio as support


class User:
    """A user whose configuration is in a folder of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.file = folder / "pskv" / "contexts.json"

    def run(self, *words, **env):
        env = {"XDG_CONFIG_HOME": self.folder, **env}
        done = subprocess.run(
            [support.program("psctl"), *map(str, words)], capture_output=True,
            text=True, timeout=support.PATIENCE, check=False,
            env=support.clean_env(**env))
        return done.returncode, done.stdout, done.stderr

    def good(self, *words, **env):
        code, out, err = self.run(*words, **env)
        assert (code, err) == (0, ""), err
        return out

    def write(self, text, mode=0o600):
        self.file.parent.mkdir(exist_ok=True)
        self.file.write_text(text if isinstance(text, str)
                             else json.dumps(text))
        self.file.chmod(mode)

    def contexts(self, **env):
        answer = json.loads(self.good("-w", "json", "context", "list", **env))
        assert answer["schema"] == 1
        return {c["name"]: c for c in answer["contexts"]}


@pytest.fixture
def user(tmp):
    return User(tmp)


def test_context_is_set_used_changed_and_removed(user, tmp):
    assert user.contexts() == {}
    folder = tmp / "tls"
    folder.mkdir()
    user.good("-e", "10.0.0.1:9091", "--tls", folder, "context", "set", "lab")
    user.good("-e", "unix:/run/x.sock", "context", "set", "here")
    assert user.contexts() == {
        "lab": {"name": "lab", "in_use": False, "endpoint": "10.0.0.1:9091",
                "tls": str(folder), "token": ""},
        "here": {"name": "here", "in_use": False,
                 "endpoint": "unix:/run/x.sock", "tls": "", "token": ""}}
    user.good("context", "use", "lab")
    assert user.contexts()["lab"]["in_use"]
    # A part alone, and its removal.
    user.good("-e", "sched:9091", "context", "set", "lab")
    lab = user.contexts()["lab"]
    assert (lab["endpoint"], lab["tls"]) == ("sched:9091", str(folder))
    user.good("--tls", "", "context", "set", "lab")
    assert user.contexts()["lab"]["tls"] == ""
    lines = user.good("context").splitlines()
    assert lines[0].split() == ["CONTEXT", "IN", "USE", "ENDPOINT", "TLS",
                                "TOKEN"]
    assert lines[1].split() == ["lab", "yes", "sched:9091", "-", "-"]
    user.good("context", "use", "-")
    assert not user.contexts()["lab"]["in_use"]
    user.good("context", "use", "lab")
    user.good("context", "remove", "lab")
    assert list(user.contexts()) == ["here"]
    assert "current" not in json.loads(user.file.read_text())


def test_file_and_folder_are_private_to_the_user(user):
    user.good("-e", "h:1", "context", "set", "a")
    assert stat.S_IMODE(user.file.stat().st_mode) == 0o600
    assert stat.S_IMODE(user.file.parent.stat().st_mode) == 0o700
    assert os.listdir(user.file.parent) == ["contexts.json"]


def test_home_is_used_without_the_variable_of_xdg(user, tmp):
    user.good("-e", "h:1", "context", "set", "a", XDG_CONFIG_HOME="", HOME=tmp)
    assert (tmp / ".config/pskv/contexts.json").exists()
    # A relative path does not count.
    assert user.good("--no-headers", "context", XDG_CONFIG_HOME="x",
                     HOME=tmp).split()[0] == "a"
    code, _, err = user.run("-e", "h:1", "context", "set", "a",
                            XDG_CONFIG_HOME="", HOME="")
    assert code == 1 and "set XDG_CONFIG_HOME or HOME" in err


@pytest.mark.parametrize("words, text", [
    (("context", "set", "x"), "give -e"),
    (("-e", "nowhere", "context", "set", "x"), "-e is HOST:PORT"),
    (("-e", "unix:x", "context", "set", "x"), "-e is HOST:PORT"),
    (("-e", "", "context", "set", "x"), "-e is HOST:PORT"),
    (("-e", "h:1", "context", "set", "-x"), "no such option"),
    (("-e", "h:1", "context", "set", "--", "-x"), "a name has 1 to 64"),
    (("-e", "h:1", "context", "set", "a b"), "a name has 1 to 64"),
    (("-e", "h:1", "context", "set", "x" * 65), "a name has 1 to 64"),
    (("context", "use", "labb"), "no context 'labb'; did you mean lab?"),
    (("context", "remove", "other"), "no context 'other'; see"),
    (("context", "use"), "give use NAME; see psctl help context"),
    (("context", "list", "x"), "give [list]; see psctl help context"),
    (("context", "lisp"), "give [list], use NAME, set NAME or remove NAME;"),
    (("--context", "la\x1bb", "status"), r"no context 'la\x1bb'; did")])
def test_wrong_usage_is_2(user, words, text):
    user.good("-e", "h:1", "context", "set", "lab")
    before = user.file.read_text()
    code, out, err = user.run(*words)
    assert (code, out) == (2, "") and text in err, err
    assert user.file.read_text() == before


def test_folder_that_is_not_there_is_no_part(user, tmp):
    code, _, err = user.run("-e", "h:1", "--tls", tmp / "none", "context",
                            "set", "a")
    assert code == 1 and "cannot find" in err
    assert not user.file.exists()


BROKEN = [
    ("{", "contexts.json:1:1: "),
    ("[]", 'no "schema": 1 and "contexts"'),
    ('{"schema": 2, "contexts": {}}', 'no "schema": 1'),
    ('{"schema": 1, "contexts": []}', 'no "schema": 1'),
    ('{"schema": 1, "contexts": {}, "current": "x"}', "'x' is in use, but"),
    ('{"schema": 1, "contexts": {}, "current": 3}', "is in use, but"),
    ('{"schema": 1, "contexts": {"a": {}}}', "'a' has no 'endpoint'"),
    ('{"schema": 1, "contexts": {"a": {"endpoint": "x"}}}', "no 'endpoint'"),
    ('{"schema": 1, "contexts": {"a": {"endpoint": "h:1", "tsl": "/"}}}',
     "may have texts 'endpoint', 'tls' and 'token' only"),
    ('{"schema": 1, "contexts": {"a": {"endpoint": 5}}}', "may have texts"),
    ('{"schema": 1, "contexts": {"a b": {"endpoint": "h:1"}}}',
     "has an invalid name"),
    ('{"schema": 1, "contexts": {}, "contexts": {}}', "duplicate"),
    (" " * (1 << 20) + "{}", "more than 1048576 bytes"),
]


@pytest.mark.parametrize("text, problem", BROKEN,
                         ids=range(len(BROKEN)))
def test_broken_file_is_78_with_its_name(user, text, problem):
    user.write(text)
    for words in (("status",), ("context", "list"), ("context", "use", "a")):
        code, out, err = user.run(*words)
        assert (code, out) == (78, ""), words
        assert str(user.file) in err and problem in err, err
    assert user.file.read_text() == text
    # A command that names its cluster does not read it.
    assert user.run("-e", "127.0.0.1:1", "status")[0] == 69


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_file_that_others_can_write_is_refused(user, mode):
    user.write({"schema": 1, "contexts": {}}, mode)
    code, _, err = user.run("status")
    assert code == 78 and f"chmod go-w {user.file}" in err


def test_file_that_others_can_read_is_fine(user):
    user.write({"schema": 1, "contexts": {}}, 0o644)
    assert user.contexts() == {}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_file_of_another_user_is_refused(user):
    user.write({"schema": 1, "contexts": {}})
    os.chown(user.file, pwd.getpwnam("nobody").pw_uid, -1)
    code, _, err = user.run("status")
    assert code == 78 and "else run 'chown 0 " in err


def test_context_leads_to_its_cluster(user, trio):
    t = trio(servers=1, agents=0)
    user.good("-e", t.endpoint, "context", "set", "here")
    user.good("-e", "127.0.0.1:1", "context", "set", "gone")
    # By name, by variable, and in use.
    assert "ps0" in user.good("--context", "here", "nodes")
    assert "ps0" in user.good("nodes", PSKV_CONTEXT="here")
    user.good("context", "use", "here")
    assert "ps0" in user.good("nodes")
    assert user.contexts(PSKV_CONTEXT="gone")["gone"]["in_use"]
    # A name has precedence over variables, and these over the one in use.
    assert user.run("nodes", PSKV_CONTEXT="gone")[0] == 69
    assert user.run("nodes", PSKV_SCHED="127.0.0.1:1")[0] == 69
    assert user.run("nodes", DMLC_PS_ROOT_URI="127.0.0.1",
                    DMLC_PS_ROOT_PORT="1")[0] == 69
    assert user.run("-e", "127.0.0.1:1", "nodes")[0] == 69
    user.good("--context", "here", "nodes", PSKV_SCHED="127.0.0.1:1",
              PSKV_CONTEXT="gone")
    user.good("-e", t.endpoint, "--context", "gone", "nodes")
    assert user.run("--context", "gone", "nodes")[0] == 69


def test_token_of_the_context_goes_to_its_cluster_alone(user, trio, tmp):
    t = trio(servers=1, agents=0, options=["control.read=token"])
    token = tmp / "token"
    code, text, err = t.psctl("token", "issue", "--rights", "read")
    assert code == 0, err
    token.write_text(text)
    token.chmod(0o600)
    address = f"127.0.0.1:{t.sched.port}"
    user.good("-e", address, "--token", token, "context", "set", "here")
    assert user.contexts()["here"]["token"] == str(token)
    user.good("context", "use", "here")
    user.good("nodes")
    user.good("--context", "here", "nodes")
    # The same address, but not by the context.
    assert user.run("-e", address, "nodes")[0] == 77
    assert user.run("nodes", PSKV_SCHED=address)[0] == 77
    # A variable has precedence over the context in use, not over a name.
    code, _, err = user.run("nodes", PSKV_TOKEN_FILE=tmp / "none")
    assert code == 2 and "none" in err
    user.good("--context", "here", "nodes", PSKV_TOKEN_FILE=tmp / "none")


def test_changes_at_the_same_time_are_all_kept(user):
    started = [subprocess.Popen(
        [support.program("psctl"), "-e", f"h:{i + 1}", "context", "set",
         f"c{i}"], env=support.clean_env(XDG_CONFIG_HOME=user.folder))
        for i in range(16)]
    assert [p.wait(support.PATIENCE) for p in started] == [0] * 16
    assert len(user.contexts()) == 16
