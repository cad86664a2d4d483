# SPDX-License-Identifier: Apache-2.0
"""A server that dies by SIGKILL comes back with its state memory, from the store of
a service manager: the job goes on, and has the bits of one in which nothing dies.
test_server_death.py has keepers; ./dev soak deaths does it many times."""
import pytest
from server_deaths import OPTIMIZERS, Training, kill, undisturbed

DEATHS = 6
MIB = 1 << 20


def train(trio, optimizer, servers):
    """The server dies when some of the workers have begun a round."""
    t = trio(servers=servers, agents=2, keep="store")
    training = Training(t, optimizer)
    with training.job:
        training.round()
        for i in range(DEATHS):
            begun = 2 * i % (len(training.job.workers) + 1)
            training.say(training.job.workers[:begun])
            kill(t, f"ps{i % servers}")
            training.say(training.job.workers[begun:])
            training.hear()
            training.round()
        digest = training.digest()
    texts = "".join(d.text() for d in t.servers())
    assert texts.count(" from state memory\n") >= DEATHS
    t.await_empty()
    return training.results, digest


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_deaths_of_servers_change_no_bit(trio, optimizer, servers):
    results = train(trio, optimizer, servers)
    clean = trio(servers=servers, agents=2)
    assert results == undisturbed(clean, optimizer, len(results[0]))


def memory(trio):
    """What psched may place on the server."""
    return next(n["memory"] for n in trio.ask("nodes")["nodes"]
                if n["role"] == "server")


def test_more_memory_counts_once_none_is_kept(trio):
    """The state memory of the process before has the size of its store.memory:
    keys that do not fit are refused, and wait for no memory without end."""
    t = trio(servers=1, agents=1, keep="store",
             server_options=["store.memory=32MiB"])
    training = Training(t, "adam", workers=2)
    with training.job:
        training.round()
        t.server_options.append("store.memory=256MiB")
        kill(t, "ps0")
        training.round()
        t.servers()[0].await_log("has room for 32.0 MiB of the 256.0 MiB of "
                                 "store.memory")
        assert memory(t) == 32 * MIB
    t.await_empty()
    kill(t, "ps0")
    t.await_node("ps0", "state", "active")
    assert memory(t) == 256 * MIB
