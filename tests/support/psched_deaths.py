# SPDX-License-Identifier: Apache-2.0
"""A scheduler that is killed and started again under a trio."""
import trio as support


def kill(trio, name="sched"):
    trio.daemons[name].stop(support.Deadline(), kill=True)


def start(trio, name="sched"):
    trio.launch(name).await_ready(support.Deadline())


def await_members(trio):
    """All of them are known to this scheduler."""
    names = set(trio.server_names + trio.agent_names)

    def here():
        return {n["name"] for n in trio.ask("nodes")["nodes"]
                if n["state"] == "active"} >= names
    support.wait_for(here, "all members")


def train(trio, name, size=4, rounds=5):
    """A whole job, which is to begin at once."""
    with support.Job(trio, size, name,
                     PSKV_START_TIMEOUT=f"{int(support.limit(10))}s") as job:
        k = job.key("w", "float32", 50000)
        job.tell(f"rounds count {rounds} 1 0 {k}")
        job.tell("barrier")


def begin(trio, name, **env):
    """A job that has trained for three rounds, and its key."""
    job = support.Job(trio, 4, name, **env)
    k = job.key("w", "float32", 50000)
    job.tell(f"rounds count 3 1 0 {k}")
    return job, k
