# SPDX-License-Identifier: Apache-2.0
"""Partitions move between servers while a job trains: its weights are those
of a run in which nothing moves, bit for bit."""
import threading

import trio as support
from proxy import Proxy
from trio import Job

# By the classic formula all of these lie on the first of 3 servers.
KEYS = (("#0", "float32", 60_000), ("#3", "float64", 10_000),
        ("#6", "float32", 128), ("#9", "float64", 3),
        ("#12", "float32", 1), ("#15", "float32", 30_000))
SIZE = {"float32": 4, "float64": 8}
# Arguments of psctl, one command after the other.
ORDERS = (["rebalance"], ["--off", "ps1", "rebalance"], ["rebalance"],
          ["--off", "ps0", "rebalance"], ["--off", "ps2", "rebalance"],
          ["rebalance"])
OPTIONS = ["scheduler.retry.first=10ms", "scheduler.retry.max=100ms"]


def open_job(t, optimizer, **env):
    job = Job(t, 4, PSKV_PLACEMENT="mxnet", PSKV_PARTITION_BYTES=16384,
              PSKV_OP_TIMEOUT="120s", **env)
    keys = [job.key(*k) for k in KEYS]
    if optimizer is None:
        return job, keys
    for k, (_, dtype, count) in zip(keys, KEYS):
        path = t.folder / f"zeros{k}"
        path.write_bytes(bytes(SIZE[dtype] * count))
        job.tell(f"init {k} src={path}")
    job.tell(f"optimizer {optimizer}")
    return job, keys


def piece(job, keys, number, during=None):
    """Some rounds of the job, during an action."""
    names = " ".join(str(k) for k in keys)
    job.say(lambda rank: f"rounds mixed 8 {number * 100 + rank} 20000 {names}")
    if during is not None:
        during()
    return job.hear()


def is_even(t):
    return all(0.95 <= s["of_even"] <= 1.05
               for s in t.ask("keys", "job")["servers"])


def holds(t):
    return {s["server"]: s["bytes"] for s in t.ask("keys", "job")["servers"]}


def replace(t, name):
    """The server dies, and its loss is known for another takes its name."""
    t.daemons[name].stop(support.Deadline(), kill=True)
    t.launch(name).await_ready(support.Deadline())


def expected(trio, optimizer, pieces):
    t = trio(servers=3, agents=2)
    job, keys = open_job(t, optimizer)
    with job:
        results = [piece(job, keys, i) for i in range(pieces)]
    t.await_empty()
    return results


def test_optimizer(trio):
    """Every state of Adam must come along, and the count of steps."""
    t = trio(servers=3, agents=2, server_options=OPTIONS,
             agent_options=OPTIONS)
    adam = "adam learning_rate=0.001 wd=0.01"
    job, keys = open_job(t, adam)
    with job:
        first = holds(t)
        assert first["ps1"] == first["ps2"] == 0 < first["ps0"]
        results = [piece(job, keys, 0)]
        for order in ORDERS:
            def move(order=order):
                answer = t.ask(*order, "job")
                assert sum(m["parts"] for m in answer["moves"]) > 0
            results.append(piece(job, keys, len(results), move))
            if "--off" in order:
                assert holds(t)[order[1]] == 0
            else:
                assert is_even(t), holds(t)
        assert sum(holds(t).values()) == first["ps0"]
        results.append(piece(job, keys, len(results)))
        code, out, _ = t.psctl("rebalance", "job")
        assert code == 0 and "are balanced" in out
        code, out, _ = t.psctl("--off", "ps2", "rebalance", "job")
        assert code == 0 and "all were moved" in out
        # The loss of an emptied server loses no value.
        replace(t, "ps2")
        results.append(piece(job, keys, len(results)))
    assert results == expected(trio, adam, len(results))
    assert len({str(r) for r in results}) == len(results)


def await_copies(t, count):
    support.wait_for(
        lambda: t.sched.text().count("backup filled: server") >= count and
        t.ask("jobs")["jobs"][0]["copies"] == "two",
        f"{count} filled backups in the log of psched, and two copies")


def test_copies_move_along(trio):
    """A server that has got partitions is lost at once, with its memory; and
    then the one to which what it had went."""
    t = trio(servers=3, agents=2, server_options=OPTIONS,
             agent_options=OPTIONS)
    adam = "adam learning_rate=0.001 wd=0.01"
    job, keys = open_job(t, adam, PSKV_REPLICAS=2)
    with job:
        await_copies(t, 3)
        results = [piece(job, keys, 0)]
        for order, lost in ((["rebalance"], None),
                            (["--off", "ps1", "rebalance"], "ps2"),
                            (["rebalance"], "ps0"),
                            (["--off", "ps2", "rebalance"], "ps1")):
            def move(order=order, lost=lost):
                assert sum(m["parts"] for m in t.ask(*order, "job")["moves"])
                if "--off" in order:
                    assert holds(t)[order[1]] == 0
                if lost is not None:
                    t.kill(lost)
            before = t.sched.text().count("backup filled: server")
            results.append(piece(job, keys, len(results), move))
            if lost is not None:
                t.launch(lost).await_ready(support.Deadline())
                await_copies(t, before + 2)
        results.append(piece(job, keys, len(results)))
    texts = t.sched.text()
    assert texts.count("partitions moved from node") == 3, texts
    t.await_empty()
    assert results == expected(trio, adam, len(results))


def test_cut_connections(trio):
    """The moves, and everything else, over connections that are cut."""
    proxies = []

    def between(port):
        proxies.append(Proxy(("127.0.0.2", port), ("127.0.0.1", port)))
        return f"127.0.0.2:{port}"

    t = trio(servers=3, agents=2, sched_ready=between, agent_options=OPTIONS,
             server_options=OPTIONS + ["advertise.address=127.0.0.2",
                                       "network.same_host=off"])
    sgd = "sgd learning_rate=0.0000001 momentum=0.9"
    try:
        for i, server in enumerate(t.servers()):
            proxies.append(Proxy(("127.0.0.2", server.port),
                                 ("127.0.0.1", server.port), seed=i))
        job, keys = open_job(t, sgd)
        with job:
            results = [piece(job, keys, 0)]
            for i, p in enumerate(proxies):
                p.cut_every(60_000 if i == 0 else 300_000, 20)
            for order in ORDERS:
                def move(order=order):
                    t.ask(*order, "job")
                results.append(piece(job, keys, len(results), move))
            assert is_even(t), holds(t)
            assert sum(p.cuts for p in proxies) > 0
        t.await_empty()
    finally:
        for p in proxies:
            p.close()
    assert results == expected(trio, sgd, len(results))


def test_server_that_replaces_a_lost_one_gets_partitions(trio):
    """It gets its share when the operator says so."""
    t = trio(servers=3, agents=2)
    job, keys = open_job(t, None)
    with job:
        results = [piece(job, keys, 0)]
        code, _, err = t.psctl("--off", "nobody", "rebalance", "job")
        assert code == 1 and "no server 'nobody'" in err
        assert t.ask("rebalance", "job")["moves"]
        replace(t, "ps1")
        results.append(piece(job, keys, len(results)))
        assert set(s for s, size in holds(t).items() if size > 0) == \
            {"ps0", "ps2"}
        rebalance = threading.Thread(target=lambda: t.ask("rebalance", "job"))
        results.append(piece(job, keys, len(results), rebalance.start))
        rebalance.join()
        assert set(holds(t)) == {"ps0", "ps1", "ps2"} and is_even(t)
        results.append(piece(job, keys, len(results)))
    t.await_empty()
    assert results == expected(trio, None, len(results))


def test_a_server_that_returns_has_0_percent_until_a_rebalance(trio):
    """psctl keys and doctor name it, and the verb that moves its share."""
    t = trio(servers=2, agents=1)
    job, keys = open_job(t, None)

    def servers():
        return {s["server"]: (round(s["of_even"]), s["spare"])
                for s in t.ask("keys", "job")["servers"]}

    hint = ("job job lacks a server, and ps1 holds nothing of it: "
            "psctl rebalance job moves its share there")
    with job:
        piece(job, keys, 0)
        assert t.ask("rebalance", "job")["moves"]
        assert servers() == {"ps0": (1, False), "ps1": (1, False)}
        assert "lacks a server" not in t.psctl("keys", "job")[1]
        replace(t, "ps1")
        piece(job, keys, 1)
        assert servers() == {"ps0": (2, False), "ps1": (0, True)}
        _, out, _ = t.psctl("keys", "job")
        assert "200.0 %" in out and "0.0 %" in out and hint in out, out
        assert hint in t.psctl("doctor")[1]
        assert t.ask("rebalance", "job")["moves"]
        assert servers() == {"ps0": (1, False), "ps1": (1, False)}
        assert "lacks a server" not in t.psctl("keys", "job")[1]
        assert "lacks a server" not in t.psctl("doctor")[1]


def test_jobs_without_rounds_do_not_migrate(trio):
    t = trio(servers=2, agents=1)
    with Job(t, 1, "loose", PSKV_MODE="async") as job:
        job.key("k", "float32", 100)
        code, _, err = t.psctl("rebalance", "loose")
        assert code == 1 and "async" in err
        replace(t, "ps1")
        support.wait_for(lambda: "ps1" not in t.psctl("keys", "loose")[1]
                         .split("\n\n")[0], "another server of the key")
        _, out, _ = t.psctl("keys", "loose")
        assert ("ps1 holds nothing of it: keys of an async or ssp job stay "
                "where they are") in out, out
    t.await_empty()
