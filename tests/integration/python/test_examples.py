# SPDX-License-Identifier: Apache-2.0
"""Programs of docs/examples that no other test of a part runs: the embedding
model trains, and its output becomes a picture."""
import re
import subprocess
import sys
import xml.etree.ElementTree

import pytest
import trio as support

EXAMPLES = support.SOURCE / "docs/examples"


WORK = ["--steps", "150", "--every", "30", "--batch", "128",
        str(support.SOURCE / "LICENSE")]


def run(*command, **options):
    """What it prints, with the losses."""
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True,
        timeout=support.limit(120), check=False, **options)
    assert done.returncode == 0, done.stderr
    losses = [float(x) for x in re.findall(r"step \d+ loss ([\d.]+)",
                                           done.stdout)]
    assert len(losses) == 5, done.stdout
    return done.stdout, losses


def train(nodes):
    """A short training with 2 workers; the losses it prints, and a checksum."""
    text, losses = run(
        support.program("pslaunch"), "--private", "-n", "2", "-s", "2",
        "--nodes", nodes, "--", sys.executable, EXAMPLES / "embedding.py",
        *WORK, env=support.clean_env(
            PYTHONPATH=support.SOURCE / "lib/client/python",
            PSKV_LIBRARY=support.LIBRARY))
    return text, losses, re.search(r"checksum (\w+)", text).group(1)


def test_embedding_learns_and_two_runs_end_alike(tmp):
    """The loss falls in every stretch; workers on one node or on two, the
    tables end with the same bits, and one process without pskv has the same
    losses."""
    pytest.importorskip("numpy")
    text, losses, checksum = train(1)
    print(text)
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]
    again, others, another = train(2)
    assert (losses, checksum) == (others, another), (text, again)
    alone, baseline = run(sys.executable, EXAMPLES / "embedding_numpy.py",
                          "--workers", "2", *WORK, env=support.clean_env())
    assert baseline == pytest.approx(losses, rel=1e-3), (text, alone)

    (tmp / "alone.txt").write_text(alone)
    (tmp / "pskv.txt").write_text(text)
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "curve.py"), "Words", "step", "loss",
         f"one process={tmp}/alone.txt", f"2 ranks={tmp}/pskv.txt"],
        capture_output=True, text=True, timeout=support.limit(60), check=True)
    picture = xml.etree.ElementTree.fromstring(done.stdout)
    name = "{http://www.w3.org/2000/svg}"
    words = [t.text for t in picture.iter(name + "text")]
    assert {"Words", "step", "loss", "one process", "2 ranks", "0"} <= \
        set(words)
    lines = [line.get("points") for line in picture.iter(name + "polyline")]
    assert len(lines) == 2
    for line in lines:
        points = [tuple(map(float, p.split(","))) for p in line.split()]
        # A falling loss is drawn downwards, where y grows.
        assert len(points) == len(losses) and points == sorted(points)
        assert [y for _, y in points] == sorted(y for _, y in points)
