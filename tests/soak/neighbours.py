#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An honest job beside peers that ask for too much. Each kind of hostile peer
works for a time on a cluster of its own, beside a job that checks every sum and
takes the time of every round; before and after, that job is alone.

    neighbours.py [SECONDS] [KIND ...]

Prints a row for each kind and daemon: resident memory above what the honest
job needed, at its most and 10 s after the end, and bytes of log; and for the
job the 99th percentile of a round beside the peers and alone. Ends with 1 when
a sum was wrong, a round hung or a daemon died, and names the goals that were
missed: 64 MiB, a ratio of 1.25, 1 MiB of log, memory back within 10 s."""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import hostile  # noqa: E402
import trio as support  # noqa: E402
from neighbour import Neighbour, die_with_parent  # noqa: E402

MIB = 1 << 20
RSS_GOAL, RATIO_GOAL, LOG_GOAL, BACK_WITHIN = 64 * MIB, 1.25, MIB, 10
# What a kind needs of the cluster; the rest is as delivered.
SERVER_OPTIONS = {"memory": ["store.memory=256MiB"]}
NOBODY = 65534


class Watch(threading.Thread):
    """The most resident memory of each daemon."""

    def __init__(self, daemons):
        super().__init__(daemon=True)
        self.daemons = daemons
        self.most = {d.name: d.rss() for d in daemons}
        self.over = threading.Event()

    def run(self):
        while not self.over.wait(0.1):
            for d in self.daemons:
                if d.alive():
                    self.most[d.name] = max(self.most[d.name], d.rss())

    def stop(self):
        self.over.set()
        self.join()
        return self.most


def attack(t, kind, seconds, seed=1):
    argv = [sys.executable, hostile.__file__, kind, "--socket", t.socket(0),
            "--sched", str(t.port), "--server", str(t.servers()[0].port),
            "--seconds", str(seconds), "--seed", str(seed)]
    if os.geteuid() == 0:
        argv += ["--uid", str(NOBODY)]  # Another user than the honest one.
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True,
                            preexec_fn=die_with_parent)


def measure(kind, seconds, folder):
    """Figures of one kind; the daemons and the job must live."""
    t = support.Trio(folder / kind, servers=1, agents=1,
                     server_options=SERVER_OPTIONS.get(kind, ()),
                     agent_options=["client.mode=0666"])
    alone = max(2.0, min(30.0, seconds / 4))
    job = None
    try:
        folder.chmod(0o755)
        t.start()
        (folder / kind).chmod(0o755)
        job = Neighbour(t.socket(0))
        job.run(1)
        before = job.run(alone)
        daemons = list(t.daemons.values())
        base = {d.name: d.rss() for d in daemons}
        log = {d.name: d.log.stat().st_size for d in daemons}
        watch = Watch(daemons)
        watch.start()
        peer = attack(t, kind, seconds)
        beside = job.run(seconds)
        said = peer.communicate(timeout=60 + seconds)[0]
        most = watch.stop()
        assert peer.returncode == 0, f"{kind}: the peer failed"
        after = job.run(max(alone, BACK_WITHIN))
        left = {d.name: d.rss() for d in daemons}
        for d in daemons:
            assert d.alive(), f"{d.name} has ended:\n{d.text()[-2000:]}"
        job.end()
        job = None
        p99 = min(before["p99"], after["p99"])
        return dict(
            kind=kind, peer=json.loads(said), beside=beside["p99"], alone=p99,
            ratio=beside["p99"] / p99, rounds=beside["rounds"],
            daemons={d.name: dict(
                most=most[d.name] - base[d.name],
                left=left[d.name] - base[d.name],
                log=d.log.stat().st_size - log[d.name]) for d in daemons})
    finally:
        if job is not None:
            job.kill()
        t.stop()


def missed(row):
    for name, d in row["daemons"].items():
        if d["most"] > RSS_GOAL:
            yield f"{name} at {d['most'] / MIB:.0f} MiB"
        if d["left"] > RSS_GOAL / 4:
            yield f"{name} keeps {d['left'] / MIB:.0f} MiB"
        if d["log"] > LOG_GOAL:
            yield f"{name} logs {d['log'] / MIB:.1f} MiB"
    if row["ratio"] > RATIO_GOAL:
        yield f"p99 x {row['ratio']:.2f}"


def show(row):
    for name, d in row["daemons"].items():
        print(f"{row['kind']:<13}{name:<8}{d['most'] / MIB:>9.1f}"
              f"{d['left'] / MIB:>9.1f}{d['log'] / 1024:>9.0f}", end="")
        if name == "sched":
            print(f"{row['alone']:>9.2f}{row['beside']:>9.2f}"
                  f"{row['ratio']:>7.2f}{row['peer']['sent']:>10}"
                  f"{row['peer']['cuts']:>7}{row['peer']['refused']:>9}",
                  end="")
        print()
    print(f"{row['kind']:<13}missed: {', '.join(missed(row)) or 'nothing'}",
          flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("seconds", nargs="?", type=float, default=600)
    p.add_argument("kinds", nargs="*", metavar="KIND",
                   help="of " + ", ".join(hostile.KINDS))
    args = p.parse_args()
    kinds = args.kinds or list(hostile.KINDS)
    failed = 0
    print(f"{'kind':<13}{'daemon':<8}{'most MiB':>9}{'left MiB':>9}"
          f"{'log KiB':>9}{'alone ms':>9}{'with ms':>9}{'ratio':>7}"
          f"{'sent':>10}{'cuts':>7}{'refused':>9}")
    for kind in kinds:
        if kind not in hostile.KINDS:
            p.error(f"no kind {kind}")
        folder = Path(tempfile.mkdtemp(prefix="pskv-soak-"))
        try:
            show(measure(kind, args.seconds, folder))
        except (AssertionError, subprocess.TimeoutExpired) as e:
            failed += 1
            print(f"{kind:<13}FAILED: {e}", flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
