"""Would catch: options that leak, a timeout that waits, a missing trace, a lasting thread limit."""

from __future__ import annotations

import contextlib
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.errors import raises

import jaxkern as jk
from jaxkern import execution as ex
from jaxkern.core.backend import ThreadContexts, current_backend


class Sleep(ex.Operator):
    host = True

    def __init__(self, seconds):
        self.seconds = seconds

    def forward(self, *, inputs):
        time.sleep(self.seconds)
        return inputs


def test_options_belong_to_their_context():
    seen = []
    with ex.execution_options(max_workers=2, use_parallel=False):
        thread = threading.Thread(target=lambda: seen.append(ex.current_options()))
        thread.start()
        thread.join()
        with ex.execution_options(max_workers=1):
            inner = ex.current_options()
            assert (inner.max_workers, inner.use_parallel) == (1, False)
        assert ex.current_options().max_workers == 2
    assert seen == [ex.ExecutionOptions()]
    assert ex.current_options() == ex.ExecutionOptions()


def test_kernel_threads_are_limited_without_compiling():
    def limit():
        return jk.doctor().kernel_threads

    before = limit()
    aug = jk.image.Compose([jk.image.CenterCrop(4)])
    f = ex.jit(lambda x: aug.eval().apply(x, None))
    images = np.zeros((4, 6, 6, 3), np.uint8)
    f(images)
    with ex.execution_options(max_workers=3):
        assert limit() == 3
        f(images)
        with ex.execution_options(max_workers=1):
            assert limit() == 1
        assert limit() == 3
    assert limit() == before
    assert f.cache_info().misses == 1


def test_overlapping_limits_of_two_threads():
    before = jk.doctor().kernel_threads
    entered, leave = threading.Event(), threading.Event()

    def other():
        with ex.execution_options(max_workers=5):
            entered.set()
            leave.wait(20)

    with ex.execution_options(max_workers=2):
        thread = threading.Thread(target=other)
        thread.start()
        entered.wait(20)
        assert jk.doctor().kernel_threads == 5
    assert jk.doctor().kernel_threads == 5  # the other thread's block is open
    leave.set()
    thread.join()
    assert jk.doctor().kernel_threads == before


@pytest.mark.parametrize("kind", ["operator", "pmap", "graph"])
def test_a_timeout_ends_waiting_and_names_running_work(kind):
    started, ended, leave = threading.Semaphore(0), threading.Event(), threading.Event()

    def slow(x):
        started.release()
        leave.wait(60)
        ended.set()
        return x

    op = ex.operator(slow, host=True)
    run = {
        "operator": lambda: op(1),
        "pmap": lambda: ex.pmap(slow, 2, host=True)(np.arange(5)),
        "graph": lambda: ex.structural_jit(lambda x: op(op(x)))(1),
    }[kind]
    # Long enough for both items to start on a busy machine.
    with pytest.raises(ex.ExecutionTimeout) as error, ex.execution_options(timeout_seconds=1):
        run()
    assert not ended.is_set()
    message = str(error.value)
    assert "cannot be cancelled" in message
    if kind == "pmap":
        assert started.acquire(timeout=20)
        assert "0 of 5 tasks" in message
        assert "3 pending" in message
        assert "item 0, item 1" in message
    leave.set()
    assert ended.wait(20)  # it continues, as the message says


def test_abandoned_work_stops_at_its_next_operator():
    steps, stopped = [], threading.Event()

    class Long(ex.Operator):
        host = True

        def __init__(self):
            self.step = Sleep(0.1)

        def forward(self, *, inputs):
            try:
                for i in range(50):
                    self.step(i)
                    steps.append(i)
            except ex.ExecutionTimeout:
                stopped.set()
                raise

    with pytest.raises(ex.ExecutionTimeout), ex.execution_options(timeout_seconds=0.25):
        Long()(0)
    assert stopped.wait(20)
    assert len(steps) < 10


def test_the_earliest_deadline_applies_until_its_block_ends():
    with ex.execution_options(timeout_seconds=60):
        with ex.execution_options(timeout_seconds=0.01):
            time.sleep(0.02)
            assert ex.remaining_seconds() == 0
            with raises(ex.ExecutionTimeout, "loop"):
                ex.check_timeout("loop")
        with ex.execution_options(timeout_seconds=1e6):
            assert ex.remaining_seconds() < 61
        assert Sleep(0.0)("fine") == "fine"
    assert ex.remaining_seconds() is None


def test_a_deadline_set_in_a_worker_thread_is_enforced():
    def inner(x):
        with ex.execution_options(timeout_seconds=0.1):
            return Sleep(1.0)(x)

    for outer in (contextlib.nullcontext(), ex.execution_options(timeout_seconds=60)):
        with outer, pytest.raises(ex.ExecutionTimeout):
            ex.pmap(inner, 2, host=True)(np.arange(2))


@pytest.mark.parametrize("seconds", [float("inf"), 10**400, 1e12, 1e300, np.float32(1e20)], ids=str)
def test_timeouts_longer_than_python_can_wait_are_no_limit(seconds):
    with ex.execution_options(timeout_seconds=seconds):
        assert ex.pmap(lambda x: int(x), 2, host=True)(np.arange(3)).tolist() == [0, 1, 2]
        assert ex.remaining_seconds() is None
        with ex.execution_options(timeout_seconds=60):
            assert ex.remaining_seconds() < 61
            with ex.execution_options(timeout_seconds=seconds):
                assert ex.remaining_seconds() < 61


def test_compiled_calls_and_maps_run_within_a_timeout():
    f = ex.jit(lambda x: x * 2)
    with ex.execution_options(timeout_seconds=60):
        assert float(f(2.0)) == 4
        assert ex.pmap(lambda x: x * 2, 1)(jnp.ones(3)).tolist() == [2, 2, 2]
        assert float(ex.structural_jit(ex.operator(lambda x: x + 1))(jnp.float32(1))) == 2
        assert ex.structural_jit(lambda x: x)(1) == 1


def profiled_calls(directory):
    """Return (name, start, end) of the Python events of the profile in a directory."""
    (profile,) = directory.rglob("*.xplane.pb")
    return [
        (event.name, event.start_ns, event.start_ns + event.duration_ns)
        for plane in jax.profiler.ProfileData.from_file(str(profile)).planes
        for line in plane.lines
        for event in line.events
    ]


def test_a_trace_has_calls_with_their_times(tmp_path):
    class Twice(ex.Operator):
        host = True

        def __init__(self):
            self.step = Sleep(0.05)

        def forward(self, *, inputs):
            return self.step(self.step(inputs))

    with ex.execution_options(trace_execution=tmp_path) as options:
        ex.pmap(Twice(), num_workers=2)(np.arange(2))
        ex.jit(lambda x: x + 1)(jnp.ones(3))
        with ex.execution_options(trace_execution=False):
            ex.operator(lambda x: x, host=True)(1)
    Sleep(0.0)(1)
    assert options.trace == tmp_path
    calls = profiled_calls(tmp_path)
    names = [name for name, _, _ in calls]
    assert [names.count(name) for name in ("pmap(Twice)", "Twice", "Sleep")] == [1, 2, 4]
    assert names.count("<lambda>") == 1
    (outer,) = [call for call in calls if call[0] == "pmap(Twice)"]
    for name, start, end in calls:
        if name in ("Twice", "Sleep"):
            assert end - start > (0.045e9 if name == "Sleep" else 0.09e9)
            assert outer[1] <= start
            assert end <= outer[2]
    assert list(tmp_path.rglob("perfetto_trace.json.gz"))
    with ex.execution_options(trace_execution=True) as options:
        Sleep(0.0)(1)
    assert [name for name, _, _ in profiled_calls(options.trace)].count("Sleep") == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("max_workers", n) for n in (0, 1.5)),
        *(("timeout_seconds", t) for t in (0, float("nan"), -float("inf"), "3", True, [1], 1j)),
    ],
    ids=str,
)
def test_bad_options(name, value):
    with pytest.raises(ValueError, match=name), ex.execution_options(**{name: value}):
        pass


def test_threads_inherit_the_settings_of_jax():
    def settings(_=0):
        mesh = jax.sharding.get_abstract_mesh()
        config = (jax.config.jax_default_matmul_precision, jax.config.jax_default_device)
        others = jax.config.jax_enable_x64, jax.config.jax_debug_nans, current_backend()
        return str((*config, *others, mesh))

    device, op = jax.devices()[1], ex.operator(settings, host=True)
    mesh = jax.make_mesh((1,), ("i",), devices=[device])
    with jax.default_matmul_precision("highest"), jax.default_device(device), jax.debug_nans(True):
        options = ex.execution_options(timeout_seconds=60)
        with jax.enable_x64(True), jax.set_mesh(mesh), jk.backend("jax"), options:
            expected = settings()
            assert op(0) == expected
            assert set(ex.pmap(settings, 2, host=True)(np.arange(3))) == {expected}
            assert ex.jit(lambda x: x + 1)(np.ones(2)).devices() == {device}
        contexts = ThreadContexts()
        expected = settings()
    assert settings() != expected
    with jax.enable_x64(True), contexts.enter():
        assert settings() == expected
