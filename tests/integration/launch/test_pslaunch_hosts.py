# SPDX-License-Identifier: Apache-2.0
"""pslaunch on two hosts, by each program that starts supervisors there: the
ranks train together, the first failing rank ends the job, and no process is left
five seconds after whatever has died."""
import os
import signal
import subprocess
import time

import pytest
import trio as support
from launched import FAMILY, SHELL, Running, argv, children_of, marked
from places import PLACES
from trio import limit, wait_for

WORKER = str(support.BUILD / "tests/integration/integration_worker")
# Variables of launchers by which a rank would take itself for the only one.
FOREIGN = "^(OMPI_COMM_WORLD_|PMI_|PMIX_|MPI_|SLURM_|UNRELATED)"


@pytest.fixture(params=PLACES)
def place(tmp, request):
    kind = PLACES[request.param]
    reason = kind.missing()
    if reason is not None:
        pytest.skip(reason)
    one = kind(tmp)
    yield one
    one.close()


def run(place, *words):
    done = subprocess.run(
        argv(*words[:-3], *place.words, *words[-3:]), capture_output=True,
        text=True, check=False, stdin=subprocess.DEVNULL, timeout=limit(90),
        env=support.clean_env(PSKV_MARK=place.mark, UNRELATED="x",
                              **place.env))
    return done.returncode, done.stdout, done.stderr


def assert_ends_in_time(place):
    begin = time.monotonic()
    wait_for(lambda: not marked(place.mark), f"end of {marked(place.mark)}")
    assert time.monotonic() - begin < limit(5)


def start_family(place):
    """A job whose ranks have children in sessions of their own."""
    r = Running("-n", "4", "-s", "2", *place.words, *SHELL, FAMILY,
                mark=place.mark, env=place.env)
    r.await_text(b"ready", 4)
    return r


def test_workers_of_two_hosts_train_together(place):
    """The sums are those of all four ranks, and no rank takes itself for the
    only one of the program that has started the supervisors."""
    script = (f"printf 'open\\nkey w float32 1000\\nrounds count 3 1 0 0\\n"
              f"close\\n' | {WORKER}; env | grep -cE '{FOREIGN}' || true")
    code, out, err = run(place, "-n", "4", "-s", "2", *SHELL, script)
    assert code == 0, (out, err)
    opened = sorted(line for line in out.split("\n")
                    if len(line.split()) == 6)
    first, second = place.names
    assert opened == sorted(
        [f"[{first}:0] ok 0 4 0 2", f"[{first}:2] ok 2 4 1 2",
         f"[{second}:1] ok 1 4 0 2", f"[{second}:3] ok 3 4 1 2"])
    results = {line.split(" ", 1)[1] for line in out.split("\n")
               if " ok " in line and len(line.split()) == 3 and
               len(line.split()[2]) == 16}
    assert len(results) == 1, out
    assert out.count("] 0\n") == 4, out
    assert_ends_in_time(place)


def test_the_first_failing_rank_is_named_last(place):
    code, out, err = run(
        place, "-n", "2", "-s", "1", *SHELL,
        "test $RANK != 1 && exec sleep 1000; echo broken gradient >&2; exit 7")
    assert code == 7, (out, err)
    lines = [line for line in err.strip().split("\n") if line]
    assert lines[-1] == ("pslaunch: first to fail: rank 1 on "
                         f"{place.names[0]} exited with code 7")
    assert_ends_in_time(place)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL],
                         ids=["interrupted", "killed"])
def test_the_end_of_pslaunch_leaves_nothing(place, how):
    with start_family(place) as r:
        r.process.send_signal(how)
        assert r.wait() == (130 if how == signal.SIGINT else -signal.SIGKILL)
        assert_ends_in_time(place)


def test_a_killed_connection_ends_the_job(place):
    """The program that is connected to the second host."""
    if not place.has_programs:
        pytest.skip("pslaunch itself is connected")
    with start_family(place) as r:
        own = r.process.pid  # Three processes, the last one has the programs.
        for _ in range(2):
            (own,) = children_of(own)
        programs = children_of(own)
        assert len(programs) == 2
        os.kill(programs[1], signal.SIGKILL)
        assert r.wait() == 69
        r.await_text(f"lost the host {place.names[1]}: the connection to its "
                     "supervisor has ended".encode(), name="err")
        assert_ends_in_time(place)
