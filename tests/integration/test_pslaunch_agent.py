# SPDX-License-Identifier: Apache-2.0
"""pslaunch by the resident agents of a cluster. Runs are in
test_pslaunch_hosts.py, too."""
import os
import pwd
import signal
import sys
import time
from pathlib import Path

import pytest
import systemd_box
import trio as support
from launched import (FAMILY, SHELL, STUBBORN, Running, children_of,
                      kill_at_once, launch, marked)
from places import Agents
from trio import limit, wait_for

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / "soak"), str(TESTS / "bench")]

import hosts  # noqa: E402
import netns  # noqa: E402

needs_root = pytest.mark.skipif(os.getuid() != 0,
                                reason="only root can become another user")
USER = pwd.getpwnam(Agents.USER) if os.getuid() == 0 else \
    pwd.getpwuid(os.getuid())
# Jobs of other tests have their control groups in the same folder.
JOB = f"job_{os.getpid()}"


@pytest.fixture
def place(tmp, request):
    one = Agents(tmp, getattr(request, "param", ()))
    one.words += ("--name", JOB)
    yield one
    one.close()


@pytest.fixture
def hosts_of_agents(tmp):
    """Two agents on hosts of their own."""
    try:
        with netns.Topology(1, 0, 0, packets=True):
            pass
    except (netns.Missing, AssertionError) as e:
        pytest.skip(f"no hosts can be made here: {e}")
    with hosts.Hosts(tmp / "net", servers=1, agents=2,
                     options=[f"control.socket={tmp}/psched.sock"],
                     agent_options=["launch.insecure=true", "launch.allow=users",
                                    f"launch.users={Agents.USER}"]) as h:
        yield h


def start_family(place):
    r = Running("-n", "4", "-s", "2", *place.words, *SHELL, FAMILY,
                mark=place.mark, env=place.env)
    r.await_text(b"ready", 4)
    return r


def assert_ends_in_time(place):
    """Nothing of the job, also not in its control groups, and no process that the
    agents have started."""
    begin = time.monotonic()
    agents = [a for a in place.trio.agents() if a.alive()]
    wait_for(lambda: not marked(place.mark) and
             not any(children_of(a.pid) for a in agents) and
             not members_of_groups(),
             f"end of {marked(place.mark)}")
    assert time.monotonic() - begin < limit(5)


def chain(agent):
    """Shim, front, guard and supervisor of the only job of an agent."""
    found, pid = [], agent.pid
    for _ in range(4):
        (pid,) = children_of(pid)
        found.append(pid)
    return found


def delegated_group():
    """Folder of this process's control group, if it may make others there."""
    mounts = [line.split()[1] for line in
              Path("/proc/self/mounts").read_text().split("\n")
              if line.split()[2:3] == ["cgroup2"]]
    own = [line[3:] for line in Path("/proc/self/cgroup").read_text().split("\n")
           if line.startswith("0::")]
    path = Path(mounts[0] + own[0]) if mounts and own else None
    return path if path and os.access(path, os.W_OK) else None


def members_of_groups():
    """Processes in the control groups of jobs of this test."""
    folder = delegated_group()
    found = []
    for group in folder.glob(f"pskv-{JOB}-*") if folder is not None else ():
        try:
            found += (group / "cgroup.procs").read_text().split()
        except OSError:
            pass  # It was removed.
    return found


@pytest.mark.parametrize("place", [
    (), pytest.param(Agents.CAPABLE, marks=needs_root)], indirect=True,
    ids=["as-tests", "capable"])
def test_processes_are_those_of_the_user(place):
    """With the user's groups, folder and name, no capability and nothing of the
    agent's environment; each agent's workers use its socket. They have a control
    group of their own where the agent may make one."""
    script = ("id -u; id -G | tr ' ' '\\n' | sort -n | tr '\\n' ' '; echo; "
              "umask; echo $HOME $USER $LOGNAME; grep CapPrm /proc/self/status; "
              "env | cut -d= -f1 | tr '\\n' ' '; echo; echo $PSKV_SOCKET; "
              "grep ^0:: /proc/self/cgroup")
    code, out, err = launch("-n", "2", "-s", "1", *place.words, "--output",
                            "plain", *SHELL, f"test $RANK = 1 || exit 0; {script}",
                            env={"PSKV_MARK": place.mark, **place.env})
    assert code == 0, err
    lines = out.split("\n")
    assert lines[0] == str(USER.pw_uid)
    groups = os.getgrouplist(USER.pw_name, USER.pw_gid)
    assert lines[1].split() == [str(g) for g in sorted(set(groups))]
    assert lines[2] == "0022"
    assert lines[3] == f"{USER.pw_dir} {USER.pw_name} {USER.pw_name}"
    assert int(lines[4].split()[1], 16) == 0
    names = set(lines[5].split())
    assert {"RANK", "MASTER_PORT", "PSKV_JOB", "DMLC_ROLE", "PATH"} <= names
    assert not {"XDG_CONFIG_HOME", "PSKV_TOKEN_FILE", "NOTIFY_SOCKET"} & names
    assert lines[6] == place.trio.socket(0)
    if delegated_group() is not None and not place.trio.agent_command:
        assert f"/pskv-{JOB}-" in lines[7], lines[7]
    assert_ends_in_time(place)


@pytest.mark.parametrize("victims", [slice(1, 4), slice(0, 1)],
                         ids=["supervisor", "shim"])
def test_killed_processes_of_an_agent_leave_nothing(place, victims):
    """All that pslaunch runs on a node as the user at once, so that none of it
    ends what the others have started; or the process above."""
    with start_family(place) as r:
        own = chain(place.trio.agents()[1])
        kill_at_once(own[victims])
        assert r.wait() == 69
        r.await_text(b"lost the host node1: the connection to its supervisor "
                     b"has ended", name="err")
        assert_ends_in_time(place)


def test_interrupt_twice_ends_ranks_at_once(place):
    """Also those that ignore TERM."""
    with Running("-n", "2", "-s", "1", *place.words, "--grace", "1000s", *SHELL,
                 STUBBORN, mark=place.mark, env=place.env) as r:
        r.await_text(b"ready", 2)
        r.process.send_signal(signal.SIGINT)
        r.await_text(b"asked", 2)
        r.process.send_signal(signal.SIGINT)
        assert r.wait() == 130
        assert_ends_in_time(place)


def test_an_agent_that_ends_takes_its_jobs_along(place):
    with start_family(place) as r:
        agent = place.trio.agents()[0]
        agent.process.send_signal(signal.SIGTERM)
        # The end of the host, or first that of a rank, which is killed with it.
        r.await_text({69: b"lost the host node0",
                      128 + signal.SIGKILL: b"killed by signal 9"}[r.wait()],
                     name="err")
        assert_ends_in_time(place)
        assert agent.await_end(support.Deadline()) == 0


@needs_root
def test_a_cut_network_ends_the_job_on_both_sides(hosts_of_agents, tmp):
    """Without a message, and long before a supervisor would miss one."""
    h = hosts_of_agents
    (tmp / "token").touch(0o600)
    (tmp / "token").write_text(h.psctl(
        "--rights", "launch", "--job", f"{Agents.USER}/", "token", "issue",
        endpoint=f"unix:{tmp}/psched.sock")[1])
    with Running("-n", "2", "-s", "1", "--launcher", "agent", "--hosts",
                 "node0,node1", *SHELL, FAMILY, inside=h.inside("sched"),
                 env={"PSKV_SCHED": h.endpoint,
                      "PSKV_TOKEN_FILE": tmp / "token"}) as r:
        r.await_text(b"ready", 2)
        begin = time.monotonic()
        h.cut("node1", True)
        wait_for(lambda: not children_of(h.agents()[1].pid),
                 "the end of the job on the host that was cut off")
        assert time.monotonic() - begin < limit(5) + 1
        assert r.wait() == 69
        r.await_text(b"lost the host node1: its host does not answer",
                     name="err")
        wait_for(lambda: not marked(r.mark), "the end of the job")


UNIT = """
[Service]
Type=notify
ExecStart={agent} -c /dev/null --sched {sched} -o node.name=n1 -o listen.port=0 \
 -o launch.allow=users -o launch.users={user} -o launch.insecure=true
User=daemon
Group=daemon
RuntimeDirectory=pskv
CapabilityBoundingSet=
NoNewPrivileges=yes
ProtectControlGroups=yes
"""


def test_jobs_have_a_control_group_below_that_of_the_unit(trio, tmp):
    """By the drop-in of the sources, with an agent that is not root: nothing is
    left of processes that were killed at once."""
    reason = systemd_box.missing()
    if reason is not None:
        pytest.skip(reason)
    tmp.chmod(0o755)
    t = trio(servers=0, agents=0)
    (tmp / "agent.service").write_text(UNIT.format(
        agent=support.program("psworker-agent"), sched=t.endpoint,
        user=Agents.USER))
    code, out, _ = t.psctl("--rights", "launch", "--job", f"{Agents.USER}/",
                           "token", "issue", endpoint=f"unix:{t.control}")
    assert code == 0
    (tmp / "token").touch(0o600)
    (tmp / "token").write_text(out)
    box = systemd_box.Box(tmp)
    try:
        box.run("mkdir", "/etc/systemd/system/agent.service.d")
        box.run("cp", tmp / "agent.service", "/etc/systemd/system/")
        box.run("cp", support.SOURCE / "systemd/launch.conf",
                "/etc/systemd/system/agent.service.d/")
        assert box.run("systemctl", "start", "agent")[0] == 0
        wait_for(lambda: "n1" in t.psctl("nodes")[1], "the agent")
        with Running("-n", "1", "--launcher", "agent", "--hosts", "n1",
                     "--name", "train", *SHELL, FAMILY,
                     env={"PSKV_SCHED": f"unix:{t.control}",
                          "PSKV_TOKEN_FILE": tmp / "token"}) as r:
            r.await_text(b"ready")
            group = ("sh", "-c", "cd /sys/fs/cgroup; cat /dev/null $(find . -path "
                     "'*/agent.service/pskv-train-*/cgroup.procs')")
            found = box.run(*group)[1].split()
            assert len(found) >= 3 + 4, found  # pslaunch, and the family.
            box.run("kill", "-STOP", *found[:3])
            box.run("kill", "-KILL", *reversed(found[:3]))
            assert r.wait() == 69
            wait_for(lambda: not marked(r.mark), "the end of the job")
            wait_for(lambda: box.run(*group)[1] == "", "the end of its group")
    finally:
        box.close()


def refused(t, node, **env):
    """The reason why a node starts nothing."""
    code, out, err = launch("-n", "1", "-s", "1", "--launcher", "agent",
                            "--hosts", node, "echo", "started",
                            env={"PSKV_SCHED": f"unix:{t.control}", **env})
    assert code == 69 and out == "", (code, out, err)
    assert f"lost the host {node}: its agent has started no supervisor" in err
    return err


def test_nodes_start_nothing_that_was_not_allowed(trio):
    """Off is the default; a scheduler without a certificate does not count; and
    users have to be listed."""
    options = {"node1": ["launch.allow=self"],
               "node2": ["launch.insecure=true", "launch.allow=users"],
               "node3": ["launch.insecure=true", "launch.allow=self"]}
    t = trio(servers=1, agents=4,
             daemon_options=lambda name: options.get(name, []))
    assert "agent node0: it starts no processes (launch.allow: off)" in \
        refused(t, "node0")
    assert "psched has not proved by a certificate who it is" in \
        refused(t, "node1")
    if os.getuid() == 0:
        assert "it starts no processes of root" in refused(t, "node3")
    else:
        assert f"user {os.getuid()} is not one of its launch.users" in \
            refused(t, "node2")
    assert "no agent 'node9' is there" in refused(t, "node9")
    assert not any(children_of(a.pid) for a in t.agents())


@needs_root
def test_a_token_has_the_right_and_its_user_is_listed(place):
    """No other right includes launch."""
    t = place.trio
    for rights in ("train", "admin"):
        assert f"has the rights {rights}, not launch" in refused(
            t, "node0", PSKV_TOKEN_FILE=place.token(rights))
    code, out, _ = t.psctl("--rights", "launch", "--job", "daemon/", "token",
                           "issue")
    assert code == 0
    other = place.tmp / "other.token"
    other.touch(0o600)
    other.write_text(out)
    assert f"user {pwd.getpwnam('daemon').pw_uid} is not one of its " \
        "launch.users" in refused(t, "node0", PSKV_TOKEN_FILE=other)
    assert not any(children_of(a.pid) for a in t.agents())
