# SPDX-License-Identifier: Apache-2.0
"""Programs of docs/examples that no other test of a part runs: the embedding
model trains, and what it prints becomes a picture."""
import re
import subprocess
import sys
import xml.etree.ElementTree

import pytest
import trio as support

EXAMPLES = support.SOURCE / "docs/examples"


def train(nodes):
    """A short training with 2 workers; the losses it prints, and a checksum."""
    pytest.importorskip("numpy")
    done = subprocess.run(
        [support.program("pslaunch"), "--private", "-n", "2", "-s", "2",
         "--nodes", str(nodes), "--",
         sys.executable, str(EXAMPLES / "embedding.py"),
         "--steps", "150", "--every", "30", "--batch", "128",
         str(support.SOURCE / "LICENSE")],
        capture_output=True, text=True, timeout=120 * support.SLOW,
        env=support.clean_env(
            PYTHONPATH=support.SOURCE / "lib/client/python",
            PSKV_LIBRARY=support.LIBRARY),
        check=False)
    assert done.returncode == 0, done.stderr
    losses = [float(x) for x in re.findall(r"step \d+ loss ([\d.]+)",
                                           done.stdout)]
    assert len(losses) == 5, done.stdout
    return done.stdout, losses, re.search(r"checksum (\w+)",
                                          done.stdout).group(1)


def test_embedding_learns_and_two_runs_end_alike():
    """The loss falls in every stretch; workers on one node or on two, the
    tables end with the same bits."""
    text, losses, checksum = train(1)
    print(text)
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]
    again, others, another = train(2)
    assert (losses, checksum) == (others, another), (text, again)

    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "curve.py"), "Words", "step", "loss"],
        input=text, capture_output=True, text=True, timeout=60, check=True)
    picture = xml.etree.ElementTree.fromstring(done.stdout)
    name = "{http://www.w3.org/2000/svg}"
    assert "Words" in [t.text for t in picture.iter(name + "text")]
    lines = [line.get("points") for line in picture.iter(name + "polyline")]
    assert len(lines) == 1
    points = [tuple(map(float, p.split(","))) for p in lines[0].split()]
    # What falls goes down, and down is where y grows.
    assert len(points) == len(losses) and points == sorted(points)
    assert [y for _, y in points] == sorted(y for _, y in points)
