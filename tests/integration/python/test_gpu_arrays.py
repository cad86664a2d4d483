# SPDX-License-Identifier: Apache-2.0
"""Arrays of a GPU, of the emulated driver, in jobs of real daemons: the bits of
arrays of the host, in the order of a stream of the program that goes on, and
clear errors where the driver fails. The driver ends a process that breaks the
order of its streams."""
import importlib.util

import pytest

import trio as support
from emulated_gpu import node

# Python has no sanitizer, so its driver is of the same build as its library.
DRIVER = support.LIBRARY.parents[2] / "tests/support/cuda_emu/libcuda.so.1"
SUPPORT = support.SOURCE / "tests/support"

pytestmark = pytest.mark.skipif(not DRIVER.exists(),
                                reason="PSKV_TEST_CUDA_DRIVER not set")

PRELUDE = f"""
        sys.path.insert(0, {str(SUPPORT)!r})
        import cuda_emu_stats
        from cuda_arrays import Cuda, Interface, Packed, Unordered
"""


def run(one, text, **env):
    env.setdefault("PSKV_CUDA_DRIVER", DRIVER)
    env.setdefault("PSKV_EMU_DEVICES", 2)
    env.setdefault("PYTHONFAULTHANDLER", 1)
    one.python(PRELUDE + text, **env)


def test_operations_have_the_bits_of_the_host(trio, job):
    t = trio(servers=1, agents=2)
    one = job(t, 2)
    run(one, """
        kv = pskv.create('dist_sync')
        cuda = Cuda()
        random = np.random.default_rng(kv.rank)
        for kind in (Interface, Packed, Unordered):
            for dtype in 'f4', 'f8', 'f2', 'u2', 'i4', 'i8', 'u1', 'i1':
                value = random.standard_normal(5003).astype(dtype) \\
                    if dtype[0] == 'f' else \\
                    random.integers(0, 100, 5003).astype(dtype)
                host, got = value.copy(), np.zeros_like(value)
                here, out = kind(cuda, value), kind(cuda, got)
                if kind is Unordered:
                    cuda.wait()
                name = '%s %s ' % (kind.__name__, dtype)
                kv.pushpull(name + 'host', host, out=got)
                kv.pushpull(name + 'gpu', here, out=out)
                assert out.get().tobytes() == got.tobytes(), name
                kv.pushpull(name + 'gpu', here)
                assert here.get().tobytes() == got.tobytes(), name
                kv.push(name + 'gpu', out)
                kv.push(name + 'host', got)
                more = kind(cuda, got)
                if kind is Unordered:
                    cuda.wait()
                kv.pull(name + 'gpu', out=[here, more])
                kv.pull(name + 'host', out=host)
                assert here.get().tobytes() == host.tobytes(), name
                assert more.get().tobytes() == host.tobytes(), name
        first = np.arange(7, dtype='f4') + kv.rank
        kv.init('w', Packed(cuda, first))
        out = Packed(cuda, first)
        kv.pull('w', out=out)
        assert (out.get() == np.arange(7)).all()
        kv.broadcast('w', Packed(cuda, first), out=out, root=1)
        assert (out.get() == np.arange(7) + 1).all()
        for refused in (lambda: kv.pushpull('w', Packed(cuda, first), out=first),
                        lambda: kv.init_rows('rows', Packed(cuda, first))):
            try:
                refused()
                assert False
            except (TypeError, ValueError) as e:
                assert 'host' in str(e), e
        # Arrays of several GPUs, which are summed by this rank.
        second = Cuda(1)
        theirs = [Packed(second, first), Interface(cuda, first * 2)]
        outs = [Packed(second, first), Interface(cuda, first)]
        for order in 1, -1:
            kv.pushpull('sum', theirs[::order], out=outs[::order])
            for o in outs:
                assert (o.get() == 6 * np.arange(7) + 3).all()
        kv.close()
    """)
    one.wait_all()


def test_collectives_have_the_bits_of_the_host(trio, job):
    t = trio(servers=1, agents=2)
    one = job(t, 2)
    run(one, """
        kv = pskv.create('dist_sync')
        cuda = Cuda()
        for kind in Interface, Packed:
            value = np.arange(6000, dtype='f4').reshape(-1, 3) / 7 + kv.rank
            for more in ({}, {'reduce': 'mean', 'prescale': .3},
                         {'postscale': 1.7}, {'reduce': 'max'}):
                host, here = value.copy(), kind(cuda, value)
                kv.allreduce(host, **more)
                kv.allreduce(here, **more)
                assert here.get().tobytes() == host.tobytes(), more
                hosts = [value[:100].copy(), value[100:].copy()]
                heres = [kind(cuda, v) for v in hosts]
                kv.grouped_allreduce(hosts, **more)
                kv.grouped_allreduce(heres, **more)
                for a, b in zip(heres, hosts):
                    assert a.get().tobytes() == b.tobytes(), more
            here = kind(cuda, value)
            kv.bcast(here, 1)
            assert (here.get() == value - kv.rank + 1).all()
            here = kind(cuda, value)
            for a, b in ((kv.allgather(here), kv.allgather(value)),
                         (kv.reducescatter(here), kv.reducescatter(value)),
                         (kv.alltoall(here)[0], kv.alltoall(value)[0])):
                assert a.tobytes() == b.tobytes()
        # Many are open at a time.
        arrays = [kind(cuda, value + i) for i in range(20)]
        handles = [kv.allreduce_async(a) for a in arrays]
        for i, (a, h) in enumerate(zip(arrays, handles)):
            h.wait()
            assert np.allclose(a.get(), 2 * (value - kv.rank + i) + 1)
        kv.close()
    """)
    one.wait_all()


def test_the_agent_sums_arrays_where_they_are(trio, job, tmp_path):
    """Those of other allocators when it has answered for them, and those of
    alloc_device(), which are freed when no array refers to them. It alone runs
    kernels."""
    t = node(trio, 1, PSKV_EMU_STATS=tmp_path)
    one = job(t, 2)
    run(one, """
        kv = pskv.create('dist_sync')
        cuda = Cuda()
        value = np.arange(5003, dtype='f4') + kv.rank
        read = lambda: cuda_emu_stats.total(sys.argv[1], 'kernel_read')
        for kind in Interface, Packed:
            here, out = kind(cuda, value), kind(cuda, value)
            in_place = np.zeros(1, 'f4')
            while in_place[0] < kv.num_workers:
                before = read()
                kv.pushpull(kind.__name__, here, out=out)
                in_place[0] = read() > before
                assert (out.get() == 2 * np.arange(5003) + 1).all()
                kv.pushpull('in place', in_place)
        made = kv.alloc_device((2, 3), 'float16')
        about = made.__cuda_array_interface__
        assert about['shape'] == (2, 3) and about['typestr'] == '<f2'
        array = Interface(cuda, np.full(6, 2, 'f2'), about['data'][0])
        array.cuda.wait()
        before = read()
        kv.pushpull('made', made)
        assert read() > before
        assert (array.get() == 4).all()
        assert len(kv._shared) == 1
        del made
        for wrong, kind in ((0,), ValueError), ((5, 'c8'), TypeError), \\
                ((5, 'float32', 7), pskv.Error):
            try:
                kv.alloc_device(*wrong)
                assert False, wrong
            except kind:
                pass
        assert not kv._shared
        kv.close()
    """.replace("sys.argv[1]", repr(str(tmp_path))), PSKV_EMU_DEVICES=1)
    one.wait_all()


@pytest.mark.parametrize("mode, on_loss", [
    ("dist_sync", "wait"), ("dist_sync", "fail"), ("dist_async", "wait")])
def test_the_order_is_that_of_a_stream_that_goes_on(trio, job, mode, on_loss):
    """2,500,000 elements are above the size from which arrays go in pieces."""
    t = trio(servers=1, agents=1)
    one = job(t, 1)
    run(one, """
        import pskv
        more = {'rule': 'assign'} if sys.argv[1:] == [] and %r == 'dist_async' \\
            else {}
        kv = pskv.create(%r, on_loss=%r, **more)
        cuda = Cuda()
        for kind in Interface, Packed:
            key = kind.__name__
            gradient = kind(cuda, np.zeros(2500000, 'i4'))
            weight = kind(cuda, np.zeros(2500000, 'i4'))
            kv.init(key, gradient)
            for step in range(2):
                # The stream stands still: all of this is still to come.
                cuda.hold(cuda.stream)
                gradient.fill(7 * step + 1)
                handle = kv.pushpull_async(key, gradient, out=weight)
                gradient_is_later = cuda.new_event()
                assert not handle.done()
                kv.pushpull('host', np.ones(5, 'f4')) if more == {} else None
                assert not handle.done()
                assert 'copied from the GPU' in handle.why() or \\
                    %r == 'fail', handle.why()
                cuda.resume(cuda.stream)
                handle.wait()
                # In the order of the stream, without a wait of the host.
                got = weight.get()
                assert (got == 7 * step + 1).all(), (step, got)
                weight.fill(0)
        # The end of the job does not lose a push that is still copied.
        gradient.fill(12345)
        kv.push(key, gradient)
        kv.close()
    """ % (mode, mode, on_loss, on_loss))
    one.wait_all()


def test_the_stream_does_not_wait_for_other_workers(trio, job):
    t = trio(servers=1, agents=1)
    one = job(t, 2)
    run(one, """
        kv = pskv.create('dist_sync')
        cuda = Cuda()
        gradient = Interface(cuda, np.ones(1000000, 'f4'))
        weight = Interface(cuda, np.zeros(1000000, 'f4'))
        kv.init('w', gradient)
        if kv.rank == 1:
            sys.stdin.readline()
        handle = kv.pushpull_async('w', gradient, out=weight)
        if kv.rank == 0:
            other = Interface(cuda, np.zeros(10, 'f4'))
            for i in range(100):
                other.fill(i)
            cuda.wait()  # Ends although the operation is open.
            assert not handle.done()
            print('goes on', flush=True)
        handle.wait()
        assert (weight.get() == 2).all()
        kv.close()
    """)
    assert one.line(0) == "goes on"
    one.processes[1].stdin.write("\n")
    one.processes[1].stdin.flush()
    one.wait_all()


def test_results_that_cannot_be_pinned_are_copied_once_more(trio, job):
    t = trio(servers=1, agents=1)
    one = job(t, 1)
    run(one, """
        kv = pskv.create('dist_sync')
        cuda = Cuda()
        for kind in Interface, Packed:
            value = np.arange(2500000, dtype='i4')
            here = kind(cuda, value)
            for out in here, kind(cuda, value):
                kv.pushpull(kind.__name__, here, out=out)
                assert (out.get() == value).all()
                out.fill(0)
                kv.pull(kind.__name__, out=out)
                assert (out.get() == value).all()
            kv.allreduce(here)
            assert (here.get() == value).all()
        kv.close()
    """, PSKV_EMU_FAIL="register:2")
    one.wait_all()


def test_the_next_agent_takes_up_operations(trio, job):
    """The memory of the lost one is unmapped while results are copied out of
    it."""
    t = trio(servers=1, agents=1, options=["registration.rejoin_grace=300s"])
    one = job(t, 1)
    run(one, """
        kv = pskv.create('dist_sync')
        cuda = Cuda()
        keys = ['w%d' % i for i in range(8)]
        arrays = [Interface(cuda, np.zeros(40000, 'i4')) for _ in keys]
        for step in range(300):
            for a in arrays:
                a.fill(step)
            handles = [kv.pushpull_async(k, a) for k, a in zip(keys, arrays)]
            for h in handles:
                h.wait()
            if step == 20:
                print('begun', flush=True)
        assert all((a.get() == step).all() for a in arrays)
        assert kv.stats()['resumes'] > 0
        kv.close()
    """, PSKV_AGENT_RETRY="120s")
    assert one.line(0) == "begun"
    t.replace("node0")
    one.wait_all()


@pytest.mark.skipif(importlib.util.find_spec("torch") is None,
                    reason="without torch")
def test_the_hook_of_ddp_is_in_order_with_the_current_stream(trio, job):
    """With the parts of a CUDA tensor that the code uses: torch has no CUDA
    here."""
    t = trio(servers=1, agents=1)
    one = job(t, 1)
    run(one, """
        import types
        import torch
        import pskv.torch
        from pskv.torch._backend import Engine

        cuda = Cuda()
        torch.cuda.current_stream = lambda device: types.SimpleNamespace(
            cuda_stream=cuda.stream)

        class Tensor:
            is_cuda, is_sparse, dtype = True, False, torch.float32
            layout = torch.strided
            is_quantized = False
            device = types.SimpleNamespace(type='cuda', index=0)

            def __init__(self, value):
                self.array = Interface(cuda, value)
                self.shape = value.shape

            def detach(self):
                return self

            contiguous = resolve_conj = resolve_neg = detach

            def is_contiguous(self):
                return True

            def data_ptr(self):
                return self.array.address

            def element_size(self):
                return 4

            def numel(self):
                return self.shape[0]

            def stride(self):
                return (1,)

        kv = pskv.create('dist_sync')
        engine = Engine(kv, None)
        tensor = Tensor(np.zeros(3000, 'f4'))
        bucket = types.SimpleNamespace(buffer=lambda: tensor, index=lambda: 0)
        for step in range(3):
            cuda.hold(cuda.stream)
            tensor.array.set(np.full(3000, step, 'f4'))
            future = pskv.torch.comm_hook(
                types.SimpleNamespace(engine=engine), bucket)
            assert not future.done()
            cuda.resume(cuda.stream)
            assert future.wait() is tensor
            assert (tensor.array.get() == step).all()
        kv.allreduce(tensor, postscale=2)  # And without the engine.
        assert (tensor.array.get() == 2 * step).all()
        engine.close()
    """)
    one.wait_all()


@pytest.mark.parametrize("failure, text", [
    ("register:1+", "cuMemHostRegister on GPU 0: CUDA_ERROR_OUT_OF_MEMORY"),
    ("stream:2", "cuStreamCreate on GPU 0"),
    ("lost:4", "CUDA_ERROR_LAUNCH_FAILED"),
    (None, "cannot open shared object file"),
])
def test_a_failure_of_the_driver_is_an_error_of_the_call(trio, job, failure,
                                                         text):
    """And the host's arrays go on."""
    t = trio(servers=1, agents=1)
    one = job(t, 1)
    run(one, """
        kv = pskv.create('dist_sync')
        try:
            if os.environ['PSKV_CUDA_DRIVER'] == '/none':
                class Nowhere:
                    __cuda_array_interface__ = {
                        'shape': (3,), 'typestr': '<f4', 'version': 3,
                        'data': (4096, False), 'stream': 1}
                kv.pushpull('w', Nowhere())
            cuda = Cuda()
            a = Interface(cuda, np.ones(1000, 'f4'))
            for i in range(10):
                kv.pushpull('w', a)
                cuda.wait()
            assert False
        except pskv.Error as e:
            print(e)
        except AssertionError as e:
            print('CUDA_ERROR_LAUNCH_FAILED', e)
        host = np.ones(1000, 'f4')
        kv.pushpull('host', host)
        assert (host == 1).all()
        kv.close()
    """, **({"PSKV_CUDA_DRIVER": "/none"} if failure is None else
            {"PSKV_EMU_FAIL": failure}))
    out, = one.wait_all()
    assert text in out, out
