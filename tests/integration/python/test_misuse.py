# SPDX-License-Identifier: Apache-2.0
"""What a program can do wrong with a store, one test each: it gets an error, in
words, and nobody else is; all go on with the job afterwards. But where ranks
contradict each other, all sides get it.

Elsewhere: wrong numbers of an optimizer (test_optimizers), of compression and
compression after the first key, beside weights or without servers
(test_compression), what a mode refuses (test_modes), rows (test_rows),
collectives (test_collectives), numbers that are no keys (unit test client)."""
import sys
import textwrap

import pytest

import trio as harness
from python_job import PRELUDE

BEGIN = """
kv = pskv.create('dist_sync', on_loss='fail')
f = lambda value, n=10: np.full(n, value, 'float32')
def wrong(words, call, kind=pskv.Error):
    try:
        call()
    except kind as e:
        for word in words:
            assert word in str(e), str(e)
    else:
        raise AssertionError('nothing was said of ' + repr(words))
"""

# A round of everybody: rank r gives r + 1.
GO_ON = """
kv.barrier()
out = f(0)
kv.pushpull(end, f(kv.rank + 1), out=out)
assert (out == want).all(), out
kv.close()
"""


def job(world, before, misuse, after=GO_ON, end="w", want=6.0,
        **more):
    """All ranks run `before`, only rank 1 `misuse`, all ranks `after`."""
    world.start(2, 2)
    j = world.job(3)
    indented = textwrap.indent(textwrap.dedent(misuse), "    ")
    j.python(f"{BEGIN}{textwrap.dedent(before)}\nend = {end!r}\n"
             f"want = {want!r}\nkv.barrier()\nif kv.rank == 1:\n{indented}\n"
             f"{after}", **more)
    ends = [j.wait(rank) for rank in (1, 0, 2)]
    assert not any(code for code, _, _ in ends), ends


WEIGHTS = "kv.init('w', f(0))\n"


def test_pull_of_an_unknown_key(world):
    job(world, WEIGHTS, """
        wrong(["key 'typo'", 'not known'], lambda: kv.pull('typo', f(0)))
        wrong(["key 'typo'"], lambda: kv.pull_async('typo', f(0)))
        kv.pull('w', f(0))
        """, """
kv.barrier()
kv.init('typo', f(3))  # It is as new as before.
kv.pull('typo', f(0))
""" + GO_ON)


def test_pull_of_an_unknown_number(world):
    job(world, "kv.init(3, f(0))\n",
        "wrong([\"key '7'\", 'not known'], lambda: kv.pull(7, f(0)))", end=3)


def test_values_that_are_no_arrays_or_numbers(world):
    """The error has the type and value that the program has given."""
    job(world, WEIGHTS, r"""
        for thing in 1.5, 3, 'abc', {}, None:
            name = type(thing).__name__
            words = ['an array is wanted', 'not ' + (
                'None' if thing is None else 'the %s %r' % (name, thing))]
            for call in (lambda: kv.init('new', thing),
                         lambda: kv.push('w', thing),
                         lambda: kv.push_async('w', thing),
                         lambda: kv.pushpull('w', thing),
                         lambda: kv.broadcast('w', thing),
                         lambda: kv.init_rows('new', thing)):
                wrong(words[:1], call, TypeError)
            wrong(words, lambda: kv.push('w', thing), TypeError)
        wrong(['the float 2.0'], lambda: kv.allreduce(2.0), TypeError)
        for thing, name in ((np.zeros(2, 'complex64'), 'complex64'),
                            (np.zeros(2, '>f4'), '>f4'),
                            (np.array(['a']), '<U1'),
                            (np.array([None]), 'object')):
            wrong(['of type ' + name], lambda: kv.push('w', thing), TypeError)
        wrong(["learning_rate is a number, not 'a'"],
              lambda: kv.set_optimizer('sgd', learning_rate='a'), TypeError)
        wrong(["loss is a number, not 'a'"], lambda: kv.report('loss', 'a'),
              TypeError)
        wrong(["priority is a whole number, not 'a'"],
              lambda: kv.push('w', f(1), priority='a'), TypeError)
        wrong(["samples is a whole number, not 1.5"],
              lambda: kv.push('w', f(1), reduce='mean', samples=1.5),
              TypeError)
        wrong(["a rank is a whole number from 0 on, not 'a'"],
              lambda: kv.group(['a']), TypeError)
        """)


def test_a_store_belongs_to_its_process(world):
    """Copies are refused, and a second one of the same rank."""
    job(world, WEIGHTS, r"""
        import copy, pickle
        handle = kv.pull_async('w', f(0))
        for what, words in (kv, 'a KVStore cannot be copied'), (handle, 'a handle belongs'):
            wrong([words], lambda: pickle.dumps(what), TypeError)
            wrong([words], lambda: copy.deepcopy([what]), TypeError)
        handle.wait()
        wrong(['this process is rank 1 of job'],
              lambda: pskv.create('dist_sync', on_loss='fail'))
        """)


def test_a_slip_of_a_name(world):
    """The error names the key that was meant; so does a warning of a push, which
    makes a new key. Names that differ in other ways are nobody's slip."""
    job(world, "kv.init(['weight', 'layer1.bias'], [f(0), f(0)])\n", r"""
        import warnings
        wrong(["Did you mean 'weight'?"], lambda: kv.pull('wieght', f(0)))
        for name, count in (('wieght', 1), ('layer1.bas', 1), ('weights', 0),
                            ('layer2.bias', 0), ('layer12.bias', 0),
                            ('height', 0)):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter('always')
                kv.push(name, f(1))
                kv.push(name, f(1))
            assert len(seen) == count, (name, seen)
            assert all(repr(name) in str(w.message) for w in seen), seen
        """, end="weight")


def test_a_slip_of_a_name_with_a_factor(world):
    """A warning names the key that was meant; a factor may come before its key."""
    job(world, """
        import warnings
        def warned(change):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter('always')
                change(lr_mult={'wieght': 2, 'later': 3}, wd_mult={'weight': 1})
            assert [str(w.message) for w in seen] == [
                "lr_mult of 'wieght' has no effect: no key has this name so far. "
                "Did you mean 'weight'?"], seen
            assert seen[0].filename == '<string>', seen[0]
        kv.init('weight', f(0))
        warned(lambda **factors: kv.set_optimizer('test', **factors))
        """, "warned(kv.set_multipliers)", end="weight")


def test_push_to_an_unknown_key_of_weights(world):
    """Without an optimizer a first push makes the key. With one it would be a
    step from nowhere."""
    job(world, WEIGHTS + "kv.set_optimizer('test')\n", """
        wrong(["'typo'", 'first value'], lambda: kv.push('typo', f(1)))
        wrong(["'typo'", 'first value'], lambda: kv.pushpull('typo', f(1)))
        """)


def test_differing_size_is_refused(world):
    """By a rank that knows the key; of one that does not yet, all hear."""
    job(world, """
        kv.init('w', f(0))
        """, """
        words = ['10', '11']
        wrong(words, lambda: kv.push('w', f(1, 11)), ValueError)
        wrong(words, lambda: kv.pull('w', f(1, 11)), ValueError)
        """)


def test_differing_type_is_refused(world):
    job(world, """
        kv.init('w', f(0))
        """, """
        wide = np.zeros(10)
        words = ['float32', 'float64']
        wrong(words, lambda: kv.push('w', wide), ValueError)
        wrong(words, lambda: kv.pull('w', wide), ValueError)
        """)


def test_mixed_kinds_of_keys_are_refused(world):
    job(world, WEIGHTS, """
        words = ['Mixed key types']
        wrong(words, lambda: kv.push(3, f(1)), TypeError)
        wrong(words, lambda: kv.init(['w', 3], [f(1), f(1)]), TypeError)
        wrong(['an int or a str'], lambda: kv.push(1.5, f(1)), TypeError)
        """)


def test_names_with_a_nul_character(world):
    """C ends a name there: 'a\\0b' and 'a\\0c' would be one key."""
    job(world, WEIGHTS + "kv.init('a', f(0))\n", r"""
        words = ['NUL', 'a\\x00b']
        wrong(words, lambda: kv.init('a\0b', f(1)), ValueError)
        wrong(words, lambda: kv.push('a\0b', f(1)), ValueError)
        wrong(words, lambda: kv.pull('a\0b', f(1)), ValueError)
        wrong(words, lambda: kv.allreduce(f(1), name='a\0b'), ValueError)
        wrong(['NUL'], lambda: kv.set_optimizer('sgd\0'), ValueError)
        """)


def test_keys_without_elements(world):
    """Rows of a push and arrays of collectives may be empty, keys may not."""
    job(world, WEIGHTS, r"""
        words = ["key 'none' has no elements"]
        none = np.zeros((0, 2), 'f')
        wrong(words, lambda: kv.init('none', none))
        wrong(words, lambda: kv.push('none', none))
        wrong(words, lambda: kv.pull('none', none))
        wrong(words, lambda: kv.broadcast('none', none))
        wrong(["10"], lambda: kv.push('w', none), ValueError)
        """, """
kv.barrier()
for shape in ((0,), (0, 2), (2, 0)):
    none = np.zeros(shape, 'f')
    kv.allreduce(none)
    kv.bcast(none, 1)
    assert kv.allgather(none).size == 0
""" + GO_ON)


def test_a_second_different_optimizer(world):
    """The same again is no second one."""
    job(world, WEIGHTS + "kv.set_optimizer('sgd', learning_rate=.5)\n", """
        wrong(['sgd', 'adam'], lambda: kv.set_optimizer('adam'))
        wrong(['0.5', '0.25'],
              lambda: kv.set_optimizer('sgd', learning_rate=.25))
        kv.set_optimizer('sgd', learning_rate=.5)
        """, want=-3.0)


def test_a_second_different_compression(world):
    job(world, "kv.set_gradient_compression({'type': 'fp16'})\n" + WEIGHTS, """
        wrong(['fp16', '2bit'],
              lambda: kv.set_gradient_compression({'type': '2bit'}))
        kv.set_gradient_compression({'type': 'fp16'})
        """)


def test_push_of_another_reduction_to_an_optimizer_is_refused(world):
    """All ranks request it, all get the error, and can continue."""
    job(world, """
        kv.init('w', f(0))
        kv.set_optimizer('test')
        wrong(['refused round 1'],
              lambda: kv.pushpull('w', f(1), reduce='max'))
        """, "pass")


def test_conflicting_requests_of_ranks_are_refused(world):
    """All ranks get the conflict, whichever was first on whichever server, and
    agree then; if two nodes differ, both get the requests of both."""
    job(world, """
        kv.init('w', f(0, 30000))
        kv.init('s', f(0))
        got = f(kv.rank + 1)
        sides = ['rank 2: max', 'rank 0, 1: sum']
        wrong(['; '.join(sides if kv.rank == 2 else sides[::-1])],
              lambda: kv.pushpull('s', got,
                                  reduce='max' if kv.rank == 2 else 'sum'))
        kv.pushpull('s', got, reduce='max')
        assert (got == 3).all(), got
        for i in range(30):
            got = f(kv.rank + 1, 30000)
            odd = i % 3  # Whose neighbour on the node may be the other side.
            for again in range(1 + i % 2):
                wrong(["'w'"], lambda: kv.pushpull(
                    'w', got, reduce='max' if kv.rank == odd else 'sum'))
            kv.pushpull('w', got)
            assert (got == 6).all(), got
        """, "pass", end="s", PSKV_PARTITION_BYTES=4096)


def test_unknown_mode_is_refused(world):
    job(world, WEIGHTS, """
        wrong(["no store 'dist_later'"], lambda: pskv.create('dist_later'),
              ValueError)
        """)


# Rank FIRST declares, and goes on; the other one when it is told to, otherwise.
BOTH = """
f = lambda value, n=4: np.full(n, value, 'float32')
first = kv.rank == FIRST
def heard(call):
    try:
        call()
    except pskv.Error as e:
        print(kv.rank, e, flush=True)
        return True
    return False
if not first:
    sys.stdin.readline()
    begin()
assert heard(mine if first else other)
kv.barrier()
# Once all declare the same, all go on. What was aborted meanwhile is heard of
# with the next try.
for _ in range(2):
    if not heard(again):
        break
else:
    raise AssertionError('refused again')
kv.barrier()
kv.close()
"""


def both_hear(world, first, nodes, story, seen, words, mode="dist_sync"):
    """Rank `first` and then the other one declare what contradicts: both get
    all `words`, in each order of arrival, on one node or two; then they agree."""
    world.start(1, nodes)
    j = world.job(2)
    j.python(f"kv = pskv.create({mode!r})\nFIRST = {first}\n"
             "begin = lambda: None\n"
             f"{textwrap.dedent(story)}{BOTH}")
    t = world.trio
    harness.wait_for(lambda: seen(t), "what the first rank declares")
    late = j.processes[1 - first]
    late.stdin.write("\n")
    late.stdin.flush()
    for rank in (first, 1 - first):
        code, out, err = j.wait(rank)
        assert code == 0, (rank, out, err)
        for word in words:
            assert word in out.splitlines()[0], (rank, out)


def a_key(name):
    def is_there(t):
        return any(k["name"] == name for k in t.ask("keys")["keys"])
    return is_there


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("what, other, words", [
    ("f(0)", "f(0, 2)", ["float32 with 4 elements", "with 2 elements"]),
    ("f(0)", "np.zeros(4)", ["float32 with 4 elements", "float64 with 4"]),
])
def test_both_sides_hear_that_a_key_differs(world, first, nodes, what, other,
                                            words):
    """The first one waits in init() for the value of rank 0, or, as rank 0, in
    pushpull()."""
    both_hear(world, first, nodes, f"""
        def mine():
            kv.init('d', {what})
            kv.pushpull('d', f(1), out=f(0))
        def other():
            kv.init('d', {other})
        def again():
            out = f(0)
            kv.init('d', f(0))
            kv.pushpull('d', f(1), out=out)
            assert (out == 2).all(), out
        """, a_key("d"), ["key 'd' is ", "for rank 0", "for rank 1"] + words)


@pytest.mark.parametrize("first", [0, 1])
def test_both_sides_hear_that_a_key_is_one_of_rows(world, first):
    both_hear(world, first, 2, """
        def mine():
            kv.init_rows('d', np.zeros((4, 2), 'float32'))
            while True:
                kv.row_sparse_pull('d', [0])
        def other():
            kv.init('d', f(0, 8))
        def again():
            kv.init_rows('d', np.zeros((4, 2), 'float32'))
        """, a_key("d"), ["float32 with 8 elements in rows of 2 for rank"])


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("first", [0, 1])
def test_both_sides_hear_that_the_optimizer_differs(world, first, nodes):
    both_hear(world, first, nodes, """
        begin = lambda: None
        def mine():
            kv.set_optimizer('sgd', learning_rate=.5)
            print('declared', file=sys.stderr, flush=True)
            kv.init('w', f(0))
            while True:
                kv.pull('w', f(0))
        def other():
            kv.set_optimizer('adam')
        def again():
            kv.set_optimizer('sgd', learning_rate=.5)
            kv.init('w', f(0))
            kv.pushpull('w', f(1), out=f(0))
        """, a_key("w"), ["optimizer sgd(", ", declared by rank %d on" % first,
                          "rank %d on" % (1 - first), "declares adam("])


@pytest.mark.parametrize("first", [0, 1])
def test_both_sides_hear_that_the_compression_differs(world, first):
    both_hear(world, first, 2, """
        def mine():
            kv.set_gradient_compression({'type': 'fp16'})
            kv.init('w', f(0))
            while True:
                kv.pull('w', f(0))
        def other():
            kv.set_gradient_compression({'type': '2bit'})
        def again():
            kv.set_gradient_compression({'type': 'fp16'})
            kv.init('w', f(0))
            kv.pushpull('w', f(1), out=f(0))
        """, a_key("w"), ["compression fp16", "declared by rank %d on" % first,
                          "declares 2bit"])


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("name, value, other, words", [
    ("PSKV_MODE", "dist_sync", "dist_async", "has mode sync for rank"),
    ("PSKV_NUM_WORKERS", "2", "3", "has num_workers 2 for rank"),
    ("PSKV_NUM_SERVERS", "1", "0", "has num_servers 1 for rank"),
    ("PSKV_ON_LOSS", "wait", "fail", "has on_loss wait for rank"),
    ("PSKV_WEIGHT", "100", "300", "has weight 100 for rank"),
])
def test_both_sides_hear_that_options_differ(world, first, name, value, other,
                                             words):
    """The one that is there does not wait for the end of the start."""
    world.start(1, 2)
    j = world.job(2)
    text = "kv = pskv.create()\n"
    j.python(text, ranks=[first], **{name: value})
    t = world.trio
    harness.wait_for(lambda: t.ask("jobs")["jobs"], "the first worker")
    j.python(text, ranks=[1 - first], **{name: other})
    for rank in (0, 1):
        code, _, err = j.wait(rank)
        assert code != 0
        assert words + f" {first} on" in err and "states" in err, err
        assert "all workers of a job must state the same" in err, err


@pytest.mark.parametrize("first", [0, 1])
def test_both_sides_hear_that_a_group_differs(world, first):
    """Groups of other sizes under one name."""
    world.start(1, 2)
    j = world.job(3)
    j.python(f"""
        kv = pskv.create('dist_sync')
        ranks = [0, 1] if kv.rank == {first} else [0, 1, 2]
        if kv.rank < 2:
            if kv.rank != {first}:
                sys.stdin.readline()
            try:
                kv.group(ranks, name='g')
            except pskv.Error as e:
                print(e, flush=True)
        kv.barrier()
        kv.close()
        """)
    t = world.trio
    harness.wait_for(lambda: any("/g" in job["name"]
                                 for job in t.ask("jobs")["jobs"]),
                     "the group of the first rank")
    j.processes[1 - first].stdin.write("\n")
    j.processes[1 - first].stdin.flush()
    for rank in range(3):
        code, out, err = j.wait(rank)
        assert code == 0, (rank, out, err)
        if rank < 2:
            assert "num_workers 2 for rank" in out and "states 3" in out, out


# Calls each function of the header with NULL in place of each pointer, the
# others pointing to zeros. The name of a call that does not return is the last.
NULLS = r"""
import ctypes, re
kv = pskv.create()
lib = ctypes.CDLL(os.environ['PSKV_LIBRARY'])
client = ctypes.c_void_p(kv._open())
text = re.sub(r'/\*.*?\*/', '', open(sys.argv[1]).read(), flags=re.S)
calls = re.findall(r'^(?:int|void|const char \*)\s*(psc_\w+)\(([^;{}]*)\);',
                   text, flags=re.S | re.M)
assert len(calls) > 60, len(calls)
zeros = ctypes.create_string_buffer(4096)
def arguments(params, missing):
    for i, p in enumerate(params):
        if '*' not in p:
            yield ctypes.c_double(1) if 'double' in p else ctypes.c_int64(1)
        elif i == missing or 'struct psc_op *' in p and '**' not in p:
            yield None
        else:
            yield client if 'psc_client *' in p and '**' not in p else zeros
for name, params in calls:
    params = [p.strip() for p in params.split(',')]
    if name in ('psc_version', 'psc_strerror'):
        continue
    f = getattr(lib, name)
    for i, p in enumerate(params):
        if '*' in p and not (name == 'psc_close' and i != 0):
            print(name, p, flush=True)
            ctypes.memset(zeros, 0, len(zeros))
            f(*arguments(params, i))
kv.barrier()
kv.close()
print('all')
"""


def test_null_in_place_of_an_argument_is_an_error(world):
    world.start(1, 1)
    j = world.job(1)
    header = harness.BUILD.parent / "lib/client/psclient.h"
    j.start(0, [sys.executable, "-c", PRELUDE + NULLS, str(header)])
    code, out, err = j.wait(0)
    assert code == 0, (code, out.splitlines()[-1:], err)
