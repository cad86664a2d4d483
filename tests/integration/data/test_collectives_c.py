# SPDX-License-Identifier: Apache-2.0
"""Random collectives in C, also under the sanitizers, and with links that are
cut all the time."""
import subprocess

import pytest

import trio as harness
from proxy import Proxy

PROGRAM = harness.BUILD / "tests" / "integration" / "integration_collectives"


def begin(trio, workers, seed, steps):
    processes = []
    for rank in range(workers):
        agent = rank * len(trio.agent_names) // workers
        processes.append(subprocess.Popen(
            [PROGRAM, str(seed), str(steps)], env=harness.clean_env(
                PSKV_JOB="job", PSKV_SOCKET=trio.socket(agent),
                PSKV_NUM_WORKERS=workers, PSKV_RANK=rank,
                PSKV_ON_LOSS="fail",
                PSKV_NUM_SERVERS=len(trio.server_names)),
            stderr=subprocess.PIPE, text=True,
            preexec_fn=harness.die_with_parent))
    return processes


def all_end_well(processes):
    try:
        errors = [p.communicate(timeout=4 * harness.PATIENCE)[1]
                  for p in processes]
        assert [p.returncode for p in processes] == [0] * len(processes), \
            "".join(errors)
    finally:
        for p in processes:
            p.kill()
            p.wait()


@pytest.mark.parametrize("servers, agents, workers",
                         [(0, 1, 3), (1, 1, 1), (2, 2, 4), (1, 3, 3)])
def test_random_collectives_match_the_model(trio, servers, agents, workers):
    t = trio(servers=servers, agents=agents)
    all_end_well(begin(t, workers, workers, 300))
    t.await_empty()


def test_random_collectives_match_the_model_while_links_are_cut(trio):
    t = trio(servers=2, agents=2,
             server_options=["advertise.address=127.0.0.2",
                             "network.same_host=off"],
             agent_options=["scheduler.retry.first=10ms",
                            "scheduler.retry.max=100ms"])
    proxies = []
    try:
        for i, server in enumerate(t.servers()):
            proxies.append(Proxy(("127.0.0.2", server.port),
                                 ("127.0.0.1", server.port), seed=i))
            proxies[-1].cut_every(300_000, 1000)
        all_end_well(begin(t, 4, 7, 400))
        assert sum(p.cuts for p in proxies) >= 20
        t.await_empty()
    finally:
        for p in proxies:
            p.close()
