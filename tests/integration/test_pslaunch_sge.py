# SPDX-License-Identifier: Apache-2.0
"""pslaunch within a job of Grid Engine, and the commands that reach hosts. Runs
from outside of jobs are in test_pslaunch_hosts.py."""
import subprocess

import pytest
import trio as support
from launched import SHELL, argv, await_nothing, launch
from places import Sge
from trio import SLOW


@pytest.fixture
def place(tmp):
    reason = Sge.missing()
    if reason is not None:
        pytest.skip(reason)
    one = Sge(tmp)
    yield one
    one.close()


@pytest.mark.parametrize("how, want", [("exit 0", 0), ("exit 7", 7)])
def test_a_job_with_a_parallel_environment(place, tmp, how, want):
    """Its hosts are those of the job, with their slots; its code is that of
    pslaunch."""
    worker = support.BUILD / "tests/integration/integration_worker"
    script = (f"printf 'open\\nbarrier\\nclose\\n' | {worker}; "
              f"test $RANK != 1 || {how}")
    done = subprocess.run(
        ["qsub", "-sync", "y", "-b", "y", "-shell", "no", "-cwd", "-j", "y",
         "-o", str(tmp / "output"), "-pe", "pskv", "3", *argv(
             "-n", "3", "-s", "1", "--launcher", "sge", *SHELL, script)],
        cwd=tmp, env=place.engine.env, capture_output=True, text=True,
        check=False, timeout=90 * SLOW, stdin=subprocess.DEVNULL)
    output = (tmp / "output").read_text()
    assert done.returncode == want, (done.stdout, done.stderr, output)
    for rank in range(3):
        assert f":{rank}] ok {rank} 3 {rank} 3\n" in output, output
    await_nothing(place.mark)


def test_hosts_are_those_of_the_job(tmp):
    hosts = tmp / "hosts"
    hosts.write_text("n1 2 main.q@n1 UNDEFINED\nn2 1 main.q@n2 UNDEFINED\n")
    words = ("-n", "3", "-s", "1", "--launcher", "sge", "--dry-run", "true")
    code, out, err = launch(*words, env={"PE_HOSTFILE": str(hosts)})
    assert code == 0, err
    assert [line for line in out.split("\n") if line.startswith("host ")] == \
        ["host n1:", "host n2:"]
    assert "\n  qrsh -inherit n1 'exec sh -c " in out
    code, _, err = launch("-n", "4", *words[2:],
                          env={"PE_HOSTFILE": str(hosts)})
    assert code == 2 and "slots for 3 workers" in err
    code, _, err = launch(*words, env={"PE_HOSTFILE": "/nonexistent/hosts"})
    assert code == 2 and "/nonexistent/hosts, the hosts of the job" in err
    hosts.write_text("n1\n")
    code, _, err = launch(*words, env={"PE_HOSTFILE": str(hosts)})
    assert code == 2 and "it is not understood" in err


def test_outside_of_a_job_hosts_are_needed():
    code, _, err = launch("-n", "1", "--launcher", "sge", "true")
    assert code == 2 and "the launcher sge needs hosts" in err
    code, out, err = launch("-n", "1", "-s", "1", "--launcher", "sge",
                            "--hosts", "h1", "--queue", "long.q", "--dry-run",
                            "true")
    assert code == 0, err
    assert "\n  qrsh -now no -pty no -N pskv -q long.q -l hostname=h1 " \
        "'exec sh -c " in out
