# SPDX-License-Identifier: Apache-2.0
"""Training under deaths of servers whose state memory is kept: the bits are those
of a run in which nothing dies."""
import hashlib
import time

import trio as support

KEYS = (("fc1.weight", "float32", 200_000), ("fc1.bias", "float32", 128),
        ("fc2.weight", "float32", 30_000))
OPTIMIZERS = {
    "sgd": "sgd learning_rate=0.0000001 momentum=0.9",
    "adam": "optimizer adam learning_rate=0.001",
    "lamb": "optimizer lamb learning_rate=0.001",
}


class Training:
    """Rounds of all keys on all workers, one after the other."""

    def __init__(self, trio, optimizer, workers=4, name="job", keys=KEYS,
                 codec=None, kind="mixed", **env):
        env.setdefault("PSKV_OP_TIMEOUT", f"{support.limit(60):.0f}s")
        env.setdefault("PSKV_PARTITION_BYTES", 65536)
        self.trio = trio
        self.job = support.Job(trio, workers, name, **env)
        if codec is not None:
            self.job.tell(codec)
        self.keys = [self.job.key(*k) for k in keys]
        self.names = " ".join(str(k) for k in self.keys)
        self.results = []
        self.kind = kind
        if optimizer is not None:
            self.job.tell(OPTIMIZERS[optimizer])
            for k, (_, _, count) in zip(self.keys, keys):
                path = trio.folder / f"zeros{count}"
                path.write_bytes(bytes(4 * count))
                self.job.tell(f"init {k} src={path}")

    def say(self, ranks=None):
        for w in self.job if ranks is None else ranks:
            w.say(f"rounds {self.kind} 1 1 0 {self.names}")

    def hear(self):
        self.results.append(self.job.hear())

    def round(self):
        self.say()
        self.hear()

    def digest(self):
        """SHA-256 of the last weights, the same of all ranks."""
        found = set()
        for w in self.job:
            h = hashlib.sha256()
            for k in self.keys:
                path = self.trio.folder / f"weights-{self.job.name}-{k}"
                w.ask(f"pull {k} out={path}")
                h.update(path.read_bytes())
            found.add(h.hexdigest())
        assert len(found) == 1, found
        return found.pop()


def undisturbed(trio, optimizer, rounds, **options):
    """Results of each round, and the digest of the weights."""
    training = Training(trio, optimizer, **options)
    with training.job:
        for _ in range(rounds):
            training.round()
        return training.results, training.digest()


def kill(trio, name):
    """Ends the process of a server, of which the store has the memory, and starts
    the next one."""
    trio.daemons[name].stop(support.Deadline(), kill=True)
    trio.launch(name)


def next_value(training, begun):
    """Seconds from `begun` to the values of a round that begins after it."""
    training.round()
    return time.monotonic() - begun
