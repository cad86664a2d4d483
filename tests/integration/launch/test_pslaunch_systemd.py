# SPDX-License-Identifier: Apache-2.0
"""pslaunch by systemd-run on hosts that systemd manages. Runs are in
test_pslaunch_hosts.py, too."""
import os
import pathlib
import time

import pytest
from launched import FAMILY, SHELL, Running, kill_at_once, launch, marked
from places import Systemd
from trio import limit, wait_for


@pytest.fixture
def place(tmp):
    reason = Systemd.missing()
    if reason is not None:
        pytest.skip(reason)
    one = Systemd(tmp)
    yield one
    one.close()


def test_a_supervisor_killed_at_once_leaves_nothing(place):
    """All its three processes, so that none of them ends what the others have
    started; the control group remains."""
    with Running("-n", "4", "-s", "2", *place.words, *SHELL, FAMILY,
                 mark=place.mark, env=place.env) as r:
        r.await_text(b"ready", 4)
        ranks = []

        def all_run():
            ranks[:] = [pid for pid, command in marked(place.mark)
                        if command.startswith(b"sleep\0")]
            return len(ranks) >= 4

        wait_for(all_run, "the ranks")
        assert all("/pskv-jobs.slice/run-" in
                   pathlib.Path(f"/proc/{pid}/cgroup").read_text()
                   for pid in ranks)
        own = [pid for pid, command in marked(place.mark)
               if command.endswith(b"--supervise\0")
               and b"systemd-run" not in command]
        assert len(own) == 6
        # When the first process of a host ends, systemd sends SIGTERM and
        # SIGCONT to all others: it is the last one.
        kill_at_once(own)
        assert r.wait() == 69
        begin = time.monotonic()
        wait_for(lambda: not marked(place.mark), "the end of the job")
        assert time.monotonic() - begin < limit(5)
        wait_for(lambda: not place.box.run(
            "systemctl", "list-units", "--all", "--no-legend", "run-u*.service")[1],
            "no unit is left")


def test_the_service_has_the_variables_of_the_session(place):
    code, out, err = launch("-n", "1", "-s", "1", *place.words, "--output",
                            "plain", *SHELL, 'echo "$TWO"; pwd; '
                            'echo "$PSKV_MARK $HOME"; cat /proc/self/cgroup',
                            env={"PSKV_MARK": place.mark, **place.env})
    assert code == 0, err
    assert out.startswith(f"-Etwo=2  x\n{os.getcwd()}\n{place.mark} "
                          f"{place.sshd.home}\n")
    assert "pskv-jobs.slice/run-" in out


def test_the_command_of_a_host_is_shown():
    code, out, err = launch("-n", "1", "--launcher", "systemd", "--hosts",
                            "h1", "--name", "it's", "--dry-run", "true")
    assert code == 0, err
    assert "\n  ssh -T -o BatchMode=yes h1 " in out
    assert "systemd-run $m --quiet --pipe --wait --collect" in out
