# SPDX-License-Identifier: Apache-2.0
"""Users of one cluster: their jobs, and rights that they hand on."""
import json
import os
import pwd
import re
import subprocess
import sys

import pytest
import trio as support
from trio import Job, Worker, WorkerError

NOBODY = pwd.getpwnam("nobody").pw_uid
needs_root = pytest.mark.skipif(os.getuid() != 0,
                                reason="only root can become another user")


def as_other_user(*words, **env):
    done = subprocess.run([support.program("psctl"), *words],
                          capture_output=True, text=True,
                          timeout=support.PATIENCE, check=False, user=NOBODY,
                          group=NOBODY, extra_groups=[], cwd="/",
                          env=support.clean_env(**env))
    return done.returncode, done.stdout, done.stderr


def readable(folder):
    """By users other than the test's."""
    folder.chmod(0o755)
    support.let_others_read(folder.parent)


@needs_root
def test_users_with_one_job_name_have_two_jobs(trio):
    """Each has its own ranks, keys and values, and ends alone."""
    t = trio(servers=1, agents=1, agent_options=["client.mode=0666"])
    readable(t.folder)
    mine = Job(t, 2, "train", open_now=False)
    theirs = Job(t, 2, "train", open_now=False, user=NOBODY)
    jobs = (mine, theirs)
    for job in jobs:
        job.tell("open")
    for job in jobs:
        key = job.key("w", "float32", 4)
        job.tell(f"rounds count 5 1 0 {key}")
    out = t.psctl("keys")[1]
    assert "root/train" in out and "nobody/train" in out, out
    rows = json.loads(t.psctl("-w", "json", "keys")[1])["keys"]
    assert {row["uid"] for row in rows} == {0, NOBODY}
    # A name alone is that of the user who calls.
    assert as_other_user("-e", t.endpoint, "keys", "root/train")[0] == 0
    code, _, err = as_other_user("-e", t.endpoint, "jobs", "cancel", "root/train")
    assert code == 77 and "job 'train' belongs to user 0" in err, err
    code, _, err = as_other_user("-e", t.endpoint, "stall", "1/train")
    assert code == 4 and "no job 'train' of uid 1 is there" in err, err
    code, _, err = as_other_user("-e", t.endpoint, "jobs", "cancel", "train")
    assert code == 0, err
    mine.tell("barrier")
    assert t.open_jobs() == ["train"]
    for w in theirs:
        w.kill()
        w.end()
    mine.close()
    t.await_empty()


# ------------------------------------------------------------------- tokens


def issue(t, *words):
    code, out, err = t.psctl("token", "issue", *words)
    assert code == 0, err
    assert out.startswith("pskv1.") and out.count("\n") == 1, out
    return out


def token_file(folder, text, mode=0o600):
    path = folder / "token"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def numbers(t):
    return [row["id"] for row in t.ask("token", "list")["tokens"]]


def number_of(t):
    """Of the only token."""
    [number] = numbers(t)
    return number


def test_token_gives_its_right_over_tcp_until_it_is_revoked(trio, tmp):
    """Without a socket that psctl could find, TCP is all it has."""
    t = trio(servers=2, agents=1)
    far = ("--token", token_file(tmp, issue(t, "--rights", "operate", "--job",
                                            "job", "--ttl", "5m")))
    with Job(t, 1) as job:
        other = support.clean_env(PSKV_SCHED=t.endpoint)
        run = (lambda *words, **env: subprocess.run(
            [support.program("psctl"), *words], capture_output=True, text=True,
            timeout=support.PATIENCE, check=False, env={**other, **env}))
        assert run(*far, "rebalance", "job").returncode == 0
        listing = t.psctl("token", "list")[1]
        assert "operate" in listing and "VALID" in listing, listing
        number = number_of(t)
        assert t.psctl("token", "revoke", number)[0] == 0
        done = run(*far, "rebalance", "job")
        assert done.returncode == 77, done.stderr
        assert f"token {number} was revoked" in done.stderr
        assert re.search(r"hello from .* refused: token " + number
                         + " was revoked", t.sched.text())
        assert "REVOKED" in t.psctl("token", "list")[1]
        job[0].ask("barrier")


@needs_root
@pytest.mark.parametrize("way", ["option", "file", "descriptor"])
def test_user_acts_by_the_token_of_another(trio, tmp, way):
    """In the ways in which a token may come: never as an argument."""
    t = trio(servers=1, agents=1)
    text = issue(t, "--rights", "operate", "--job", "job")
    path = token_file(tmp, text)
    os.chown(path, NOBODY, NOBODY)
    tmp.chmod(0o755)
    words, env, fds = ("jobs", "cancel", "job"), {}, ()
    if way == "option":
        words = ("--token", path, *words)
    elif way == "file":
        env = {"PSKV_TOKEN_FILE": path}
    else:
        fd = os.memfd_create("token", 0)
        os.write(fd, text.encode())
        env, fds = {"PSKV_TOKEN_FD": str(fd)}, (fd,)
    job = Job(t, 1)
    assert as_other_user("-e", t.endpoint, *("jobs", "cancel", "job"))[0] == 77
    done = subprocess.run([support.program("psctl"), "-e", t.endpoint, *words],
                          capture_output=True, text=True, pass_fds=fds,
                          timeout=support.PATIENCE, check=False, user=NOBODY,
                          group=NOBODY, extra_groups=[], cwd="/",
                          env=support.clean_env(**env))
    assert done.returncode == 0, done.stderr
    for w in job:
        w.kill()
        w.end()
    t.await_empty()


@needs_root
def test_operators_change_jobs_of_all_users(trio):
    t = trio(servers=1, agents=1, options=["control.operators=nobody"])
    readable(t.folder)
    with Job(t, 1):
        assert as_other_user("-e", t.endpoint, "rebalance", "job")[0] == 0
        code, out, err = as_other_user("-e", t.endpoint, "token", "issue",
                                       "--rights", "read", "--job", "root/job")
        assert code == 0 and out.startswith("pskv1."), err
    done = subprocess.run(
        [support.program("psched"), "-c", "/dev/null", "-o",
         "control.operators=no-such-user"], capture_output=True, text=True,
        timeout=support.PATIENCE, check=False, env=support.clean_env())
    assert done.returncode == 78
    assert "this host has no user 'no-such-user'" in done.stderr


def test_reading_over_tcp_can_demand_a_token(trio, tmp):
    t = trio(servers=1, agents=1, options=["control.read=token"])
    code, _, err = t.psctl("nodes")
    assert code == 77 and "a token with the right read" in err, err
    local = f"unix:{t.control}"
    assert t.psctl("nodes", endpoint=local)[0] == 0
    path = token_file(tmp, t.psctl("token", "issue", "--rights", "read",
                                   endpoint=local)[1])
    assert t.psctl("--token", path, "nodes")[0] == 0


def test_tokens_outlive_psched_with_a_key_file(trio, tmp):
    """So do revocations."""
    key = tmp / "token.key"
    t = trio(servers=1, agents=1, options=[f"security.tokens.key={key}"])
    kept = issue(t, "--rights", "admin", "--ttl", "1h")
    kept_number = number_of(t)
    gone = issue(t, "--rights", "read")
    [number] = [row["id"] for row in t.ask("token", "list")["tokens"]
                if row["id"] != kept_number]
    assert t.psctl("token", "revoke", number)[0] == 0
    for path in (key, tmp / "token.key.tokens"):
        assert path.stat().st_mode & 0o777 == 0o600
    t.sched.stop(support.Deadline(), kill=True)
    t.launch("sched").await_ready(support.Deadline())
    path = token_file(tmp, gone)
    code, _, err = t.psctl("--token", path, "nodes")
    assert code == 77 and f"token {number} was revoked" in err, err
    path = token_file(tmp, kept)
    assert t.psctl("--token", path, "nodes")[0] == 0
    assert len(t.ask("token", "list")["tokens"]) == 2


@pytest.mark.parametrize("text, mode, complaint", [
    ("pskv1.abc\n", 0o644, "other users may read this token"),
    ("secret\n", 0o600, "it has no token"),
    ("pskv1.abc\n", 0o600, "the token is not one of this scheduler")])
def test_unusable_token_is_refused_with_the_reason(trio, tmp, text, mode,
                                                   complaint):
    t = trio(servers=1, agents=0)
    code, _, err = t.psctl("--token", token_file(tmp, text, mode), "nodes")
    assert code in (2, 77) and complaint in err, err


def test_broken_files_of_tokens_stop_psched(tmp):
    """A start without them would make revoked tokens valid again, or all
    invalid."""
    key = tmp / "key"
    argv = [support.program("psched"), "-c", "/dev/null", "-o",
            "listen.port=0", "-o", f"security.tokens.key={key}"]
    run = (lambda: subprocess.run(argv, capture_output=True, text=True,
                                  timeout=support.PATIENCE, check=False,
                                  env=support.clean_env()))
    key.write_text("no key\n")
    key.chmod(0o600)
    assert "it has no Ed25519 key in PEM" in run().stderr
    key.chmod(0o640)
    assert "others cannot read or write" in run().stderr
    key.unlink()
    tokens = tmp / "key.tokens"
    for content in (b"x", b"\0" * 192):
        tokens.write_bytes(content)
        tokens.chmod(0o600)
        done = run()
        assert done.returncode != 0
        assert "it is not a list of tokens" in done.stderr, done.stderr


# ------------------------------------------------------------ tokens of workers


PERM = -10


@pytest.fixture
def shared(trio, tmp):
    """A node of which every user may be, and tokens of root for nobody."""
    class Shared:
        def __init__(self):
            # The key outlives psched.
            self.trio = trio(servers=1, agents=1,
                             agent_options=["client.mode=0666"],
                             options=[f"security.tokens.key={tmp}/key"])
            readable(self.trio.folder)
            tmp.chmod(0o755)

        def token(self, *words, rights="train"):
            path = token_file(tmp, issue(self.trio, "--rights", rights, *words))
            os.chown(path, NOBODY, NOBODY)
            return path

        def worker(self, rank, size=2, token=None, **env):
            """Of root, or of nobody with a token, of job "job"."""
            if token is not None:
                env.update(user=NOBODY, PSKV_TOKEN_FILE=token)
            env.setdefault("PSKV_ON_LOSS", "wait")
            return Worker(self.trio.socket(0), "job", rank, size,
                          PSKV_NUM_SERVERS=1, **env)

        def pair(self, token, **env):
            """Root's rank 0, and rank 1 of nobody, open."""
            pair = [self.worker(0, **env), self.worker(1, token=token, **env)]
            for w in pair:
                w.say("open")
            for w in pair:
                w.hear()
            return pair

        def refusal(self, token, **env):
            """Of nobody's worker, alone in its job."""
            w = self.worker(0, size=1, token=token, **env)
            with pytest.raises(WorkerError) as refused:
                w.ask("open")
            w.end()
            assert refused.value.code == PERM, refused.value
            return str(refused.value)

    return Shared()


def train(pair):
    keys = []
    for w in pair:
        w.say("key w float32 100")
    for w in pair:
        keys.append(w.hear()[0])
    assert keys[0] == keys[1]
    for w in pair:
        w.say(f"rounds count 5 1 0 {keys[0]}")
    hashes = {w.hear()[-1] for w in pair}
    assert len(hashes) == 1
    return keys[0]


def leave(pair):
    for w in pair:
        w.say("close")
    for w in pair:
        w.hear()
        assert w.end() == 0


@needs_root
@pytest.mark.parametrize("words", [("--job", "job"), ()])
def test_worker_of_another_user_trains_by_a_token(shared, words):
    pair = shared.pair(shared.token(*words))
    train(pair)
    [job] = shared.trio.ask("jobs")["jobs"]
    assert job["uid"] == 0
    assert "pskv1." not in shared.trio.sched.text()
    leave(pair)
    shared.trio.await_empty()


@needs_root
def test_worker_of_another_user_without_a_token_has_its_own_job(shared):
    mine = shared.worker(0, size=1)
    theirs = shared.worker(0, size=1, user=NOBODY)
    for w in (mine, theirs):
        w.ask("open")
    assert {job["uid"] for job in shared.trio.ask("jobs")["jobs"]} == {0, NOBODY}
    leave((mine, theirs))


@needs_root
def test_token_that_does_not_allow_to_train_is_refused(shared):
    t = shared.trio
    assert "is for job 'other' of user 0 only" in shared.refusal(
        shared.token("--job", "other"))
    assert "has the rights operate, not train" in shared.refusal(
        shared.token(rights="operate"))
    listed = len(numbers(t))
    expired = shared.token("--ttl", "1s")
    support.wait_for(lambda: len(numbers(t)) == listed, "the end of the token")
    assert "expired" in shared.refusal(expired)
    revoked = shared.token()
    [number] = set(numbers(t)) - set(numbers(t)[:listed])
    assert t.psctl("token", "revoke", number)[0] == 0
    assert f"token {number} was revoked" in shared.refusal(revoked)
    for reason in ("is for job", "has the rights", "expired", "was revoked"):
        assert re.search("worker .* of agent node0 refused: .*" + reason,
                         t.sched.text())


@needs_root
def test_token_that_cannot_be_read_is_refused(shared, tmp):
    """Before anything is sent."""
    for text, mode, complaint in (("secret\n", 0o600, "it has no token"),
                                  ("pskv1.x\n", 0o644, "other users may read")):
        path = token_file(tmp, text, mode)
        os.chown(path, NOBODY, NOBODY)
        w = shared.worker(0, size=1, token=path)
        with pytest.raises(WorkerError, match=complaint):
            w.ask("open")
        w.end()


@needs_root
@pytest.mark.parametrize("words", [(), ("--ttl", "8s")])
def test_end_of_a_token_cuts_its_workers_in_5_s(shared, words):
    t = shared.trio
    mine, theirs = shared.pair(shared.token("--job", "job", *words))
    key = train((mine, theirs))
    # An operation that waits for the other rank.
    theirs.say(f"rounds count 1 1 0 {key}")
    if not words:
        assert t.psctl("token", "revoke", number_of(t))[0] == 0
    reason = "expired" if words else "was revoked"
    with pytest.raises(WorkerError, match=reason) as cut:
        theirs.hear(8 + 5 if words else 5)
    assert cut.value.code == PERM
    theirs.end()
    assert re.search("rank 1 on .* was lost: token .* " + reason,
                     t.sched.text())
    # The job waits for a process that may take the rank.
    again = shared.worker(1)
    again.ask("open")
    again.ask("key w float32 100")
    leave((mine, again))


@needs_root
def test_token_counts_again_at_another_agent(shared):
    """The process that survived its agent shows it to the next one."""
    t = shared.trio
    pair = shared.pair(shared.token(), PSKV_AGENT_RETRY="60s")
    train(pair)
    t.daemons["node0"].stop(support.Deadline(), kill=True)
    t.launch("node0").await_ready(support.Deadline())
    for w in pair:
        w.say("barrier")
    for w in pair:
        w.hear()
    t.daemons["node0"].stop(support.Deadline(), kill=True)
    assert t.psctl("token", "revoke", number_of(t))[0] == 0
    t.launch("node0").await_ready(support.Deadline())
    with pytest.raises(WorkerError, match="was revoked"):
        pair[1].ask("barrier")
    for w in pair:
        w.kill()
        w.end()


@pytest.mark.parametrize("words, complaint", [
    (("token",), "give list, issue or revoke NUMBER"),
    (("token", "issue"), "give --rights"),
    (("--rights", "read,", "token", "issue"), "give one or more of train, read"),
    (("--rights", "root", "token", "issue"), "give one or more of train, read"),
    (("token", "revoke", "12"), "16 digits"),
    (("--rights", "read", "--job", "no-such-user/x", "token", "issue"),
     "no such user")])
def test_wrong_words_about_tokens_are_refused(words, complaint):
    done = subprocess.run([support.program("psctl"), *words],
                          capture_output=True, text=True,
                          timeout=support.PATIENCE, check=False,
                          env=support.clean_env())
    assert done.returncode == 2 and complaint in done.stderr, done.stderr


# A listener at an address of the network that is not psched, and psctl.
THIEF = """
import socket, subprocess, sys
psctl, path = sys.argv[1:]
for words in (("addr", "add", "10.9.9.1/32", "dev", "lo"),
              ("link", "set", "lo", "up")):
    subprocess.run(["ip", *words], check=True)
token = open(path, "rb").read().strip()
for address, words in (("10.9.9.1", ()), ("10.9.9.1", ("--insecure",)),
                       ("127.0.0.1", ())):
    with socket.create_server((address, 0)) as s:
        p = subprocess.Popen([psctl, "-e", "%s:%d" % s.getsockname(),
                              "--token", path, "--timeout", "5s", *words,
                              "nodes"], stderr=subprocess.PIPE, text=True)
        s.settimeout(60)
        c, _ = s.accept()
        c.settimeout(60)
        data = c.recv(65536)
        c.close()
        err = p.communicate()[1]
        print(address, *words, p.returncode, token in data,
              "--tls FOLDER" in err, flush=True)
"""


def test_no_token_leaves_for_another_host_over_plain_tcp(tmp):
    apart = ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*apart, "ip", "link", "set", "lo", "up"], check=False,
                      capture_output=True).returncode != 0:
        pytest.skip("needs namespaces")
    path = token_file(tmp, "pskv1.token-of-a-test")
    done = subprocess.run(
        [*apart, sys.executable, "-c", THIEF, support.program("psctl"), path],
        capture_output=True, text=True, timeout=support.PATIENCE, check=False,
        env=support.clean_env())
    assert done.stdout.splitlines() == [
        "10.9.9.1 77 False True", "10.9.9.1 --insecure 69 True False",
        "127.0.0.1 69 True False"], done.stdout + done.stderr
