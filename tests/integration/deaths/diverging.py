# SPDX-License-Identifier: Apache-2.0
"""A rank of a program of test_diverged.py: `ring NAME`, whose ranks wait for each
other, or `random SEED COUNT`, programs that end by themselves."""
import os
import random
import subprocess
import sys
import threading
import time

# ------------------------------------------------------------ programs: rings


def array(value=0.0):
    import numpy
    return numpy.full(4, value, numpy.float32)


def keys(kv):
    kv.pushpull("a" if kv.rank == 0 else "b", array(), out=array())


def barrier_and_key(kv):
    if kv.rank == 0:
        kv.barrier()
    else:
        kv.pushpull("a", array(), out=array())


def barrier_and_pull(kv):
    kv.push("a", array())
    if kv.rank == 0:
        kv.barrier()
    else:
        kv.push("a", array())
        kv.pull("a", out=array())


def collective(kv):
    if kv.rank == 0:
        kv.allreduce(array(), name="x")
    else:
        kv.barrier()


def groups(kv):
    group = kv.group([0, 1], name="pair")
    if kv.rank == 0:
        group.barrier()
    else:
        kv.barrier()


def norms(kv):
    kv.pushpull("a" if kv.rank == 0 else "b", array(1), out=array())


def lars(kv):
    norms(kv)


def init(kv):
    if kv.rank == 0:
        kv.barrier()
    else:
        kv.init("late", array())


def eight_in_two_orders(kv):
    for key in ("a", "b") if kv.rank != 5 else ("b", "a"):
        kv.pushpull(key, array(), out=array())


def eight_and_a_barrier(kv):
    if kv.rank == 3:
        kv.barrier()
    else:
        kv.pushpull("a", array(), out=array())


def threads_and_handles(kv):
    """Two threads wait on each rank, and a third one waits for them."""
    mine, other = ("a", "b") if kv.rank == 0 else ("c", "d")
    failures = []

    def run(key):
        try:
            kv.pushpull_async(key, array(), out=array()).wait()
        except Exception as e:  # pylint: disable=broad-except
            failures.append(e)

    threads = [threading.Thread(target=run, args=(k,)) for k in (mine, other)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    raise failures[0]


def sleeps(kv):
    if kv.rank == 0:
        kv.pushpull("a", array(), out=array())
    else:
        time.sleep(float(os.environ["SLEEP"]))
        kv.pushpull("a", array(), out=array())


def run_ring(name):
    import pskv
    kv = pskv.create()
    if name in ("norms", "lars"):
        kv.set_optimizer("lars" if name == "lars" else "lamb", lr=.1)
    for key in "abcd":
        kv.init(key, array(1))
    kv.barrier()
    began = time.monotonic()
    try:
        globals()[name](kv)
        print("rank %d has ended" % kv.rank, flush=True)
    except pskv.Error as e:
        print("rank %d after %.1f s: %s" %
              (kv.rank, time.monotonic() - began, e), flush=True)
        os._exit(7)
    kv.close()


# ----------------------------------------------------------- programs: random


def pause(kind, seconds, kv):
    """A thread is in no call of the library, in one of many ways."""
    import pskv
    end = time.monotonic() + seconds
    if kind == "sleep":
        time.sleep(seconds)
    elif kind == "spin":
        while time.monotonic() < end:
            pass
    elif kind == "event":
        threading.Event().wait(seconds)
    elif kind == "timer":
        event = threading.Event()
        threading.Timer(seconds, event.set).start()
        event.wait()
    elif kind == "child":
        with subprocess.Popen(["sleep", str(seconds)]) as child:
            child.wait()
    elif kind == "pipe":
        with subprocess.Popen(["sh", "-c", "sleep %f; echo" % seconds],
                              stdout=subprocess.PIPE) as child:
            child.stdout.read()
    elif kind == "helper":
        # A thread that never calls the library wakes one that does.
        event = threading.Event()

        def run():
            with subprocess.Popen(["sh", "-c", "sleep %f; echo" % seconds],
                                  stdout=subprocess.PIPE) as child:
                child.stdout.read()
            event.set()

        threading.Thread(target=run).start()
        event.wait()
    elif kind == "limit":
        # A wait with a limit that no other rank ends in time.
        try:
            kv.barrier_async().wait(timeout=seconds)
        except pskv.Error:
            pass


KINDS = ("sleep", "spin", "event", "timer", "child", "pipe", "helper")
# A standstill is seen after 1 s.
PAUSES = (.01, .1, 1.3, 2.2, 4.5)


def random_thread(kv, plan, dice):
    """The rounds of the keys of one thread: the same on all ranks, with pauses
    that differ."""
    open_handles = []
    for key, how in plan:
        if dice.random() < .3:
            pause(dice.choice(KINDS), dice.choice(PAUSES), kv)
        handle = kv.pushpull_async(key, array(1), out=array())
        if how == "later":
            open_handles.append(handle)
        elif how == "poll":
            while not handle.done():
                time.sleep(.01)
        elif how == "slices":
            while True:
                try:
                    handle.wait(timeout=.3)
                    break
                except TimeoutError:
                    pass
        else:
            handle.wait()
    for handle in open_handles:
        handle.wait()


def random_program(kv, seed):
    """Ends on its own: each thread has its own keys, and the main thread may
    wait for another rank's while its own threads go on."""
    dice = random.Random(seed)
    own = random.Random(seed * 1000 + kv.rank)
    count = dice.randint(1, 3)
    plans = [[("k%d.%d" % (t, dice.randrange(2)),
               dice.choice(("now", "now", "later", "poll", "slices")))
              for _ in range(dice.randint(1, 4))] for t in range(count)]
    for t in range(count):
        for i in range(2):
            kv.init("k%d.%d" % (t, i), array())
    early = dice.random() < .5 and kv.rank == dice.randrange(kv.num_workers)
    threads = [threading.Thread(target=random_thread,
                                args=(kv, plan, random.Random(own.random())))
               for plan in plans[1:]]
    for t in threads:
        t.start()
    # Rank 0 may wait in the barrier while its threads still serve others.
    if early and count > 1:
        waits = kv.barrier_async()
        random_thread(kv, plans[0], own)
        waits.wait()
    else:
        random_thread(kv, plans[0], own)
        kv.barrier()
    for t in threads:
        t.join()
    kv.barrier()


def run_random(first, count):
    import pskv
    failed = 0
    for seed in range(first, first + count):
        kv = pskv.create(job="p%d" % seed)
        try:
            random_program(kv, seed)
        except Exception as e:  # pylint: disable=broad-except
            print("program %d, rank %d: %s" % (seed, kv.rank, e), flush=True)
            failed = 1
        kv.close()
    sys.exit(failed)


if __name__ == "__main__":
    if sys.argv[1] == "ring":
        run_ring(sys.argv[2])
    else:
        run_random(int(sys.argv[2]), int(sys.argv[3]))
