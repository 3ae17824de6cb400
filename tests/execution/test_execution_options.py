"""Would catch: options that leak, a timeout that waits, a trace that lies, a cap that stays."""

from __future__ import annotations

import json
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxkern as jk
from jaxkern import execution as ex
from jaxkern.core.contexts import ThreadContexts


class Work(ex.Operator):
    host = True

    def __init__(self, seconds):
        self.seconds = seconds

    def forward(self, *, inputs):
        time.sleep(self.seconds)
        return inputs


class Twice(ex.Operator):
    host = True

    def __init__(self, seconds):
        self.step = Work(seconds)

    def forward(self, *, inputs):
        return self.step(self.step(inputs))


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


def test_kernels_are_capped_without_compiling_and_freed_again():
    cap = lambda: jk.doctor().max_workers  # noqa: E731
    before = cap()
    aug = jk.image.Compose([jk.image.CenterCrop(4)])
    f = ex.jit(lambda x: aug.eval().apply(x, None))
    images = np.zeros((4, 6, 6, 3), np.uint8)
    f(images)
    with ex.execution_options(max_workers=3):
        assert cap() == 3
        f(images)
        with ex.execution_options(max_workers=1):
            assert cap() == 1
        assert cap() == 3
    assert cap() == before
    assert f.cache_info().misses == 1


def test_overlapping_caps_of_two_threads():
    before = jk.doctor().max_workers
    entered, leave = threading.Event(), threading.Event()

    def other():
        with ex.execution_options(max_workers=5):
            entered.set()
            leave.wait(20)

    with ex.execution_options(max_workers=2):
        thread = threading.Thread(target=other)
        thread.start()
        entered.wait(20)
        assert jk.doctor().max_workers == 5
    assert jk.doctor().max_workers == 5  # the other thread's block is open
    leave.set()
    thread.join()
    assert jk.doctor().max_workers == before


@pytest.mark.parametrize("kind", ["operator", "pmap", "graph"])
def test_a_timeout_ends_waiting_and_says_what_goes_on(kind):
    ended, leave = threading.Event(), threading.Event()

    def slow(x):
        leave.wait(60)
        ended.set()
        return x

    op = ex.operator(slow, host=True)
    run = {
        "operator": lambda: op(1),
        "pmap": lambda: ex.pmap(slow, 2, host=True)(np.arange(5)),
        "graph": lambda: ex.structural_jit(lambda x: op(op(x)))(1),
    }[kind]
    # Long enough for both items to begin on a busy machine.
    with pytest.raises(ex.ExecutionTimeout) as error, ex.execution_options(timeout_seconds=1):
        run()
    assert not ended.is_set()  # which it would not be for 60 s
    message = str(error.value)
    assert "cannot be cancelled" in message
    if kind == "pmap":
        assert "0 of 5 finished, 3 were not begun" in message
        assert "2 still run" in message
        assert "item 0, item 1" in message
    leave.set()
    assert ended.wait(20)  # it went on, as the message says


def test_work_that_was_given_up_stops_at_its_next_operator():
    steps = []

    class Long(ex.Operator):
        host = True

        def __init__(self):
            self.step = Work(0.1)

        def forward(self, *, inputs):
            try:
                for i in range(50):
                    self.step(i)
                    steps.append(i)
            except ex.ExecutionTimeout as error:
                steps.append(error)
                raise

    with pytest.raises(ex.ExecutionTimeout), ex.execution_options(timeout_seconds=0.25):
        Long()(0)
    limit = time.perf_counter() + 20
    while not (steps and isinstance(steps[-1], ex.ExecutionTimeout)):
        assert time.perf_counter() < limit
        time.sleep(0.05)
    assert len(steps) < 10


def test_the_sooner_deadline_holds_and_ends_with_its_block():
    with ex.execution_options(timeout_seconds=60):
        with ex.execution_options(timeout_seconds=0.01):
            time.sleep(0.02)
            assert ex.remaining_seconds() == 0
            with pytest.raises(ex.ExecutionTimeout, match=r"loop: the 0\.01 s"):
                ex.check_timeout("loop")
        with ex.execution_options(timeout_seconds=1e6):
            assert ex.remaining_seconds() < 61
        assert Work(0.0)("fine") == "fine"
    assert ex.remaining_seconds() is None


@pytest.mark.parametrize(
    ("seconds", "endless"),
    [
        (float("inf"), True),
        (10**400, True),
        (1e12, False),
        (1e300, False),
        (np.float32(1e20), False),
    ],
    ids=["inf", "10**400", "1e12", "1e300", "float32"],
)
def test_timeouts_beyond_what_python_can_wait(seconds, endless):
    with ex.execution_options(timeout_seconds=seconds):
        assert ex.pmap(lambda x: int(x), 2, host=True)(np.arange(3)).tolist() == [0, 1, 2]
        assert Work(0.0)("fine") == "fine"
        ex.check_timeout()
        assert (ex.remaining_seconds() is None) == endless
        with ex.execution_options(timeout_seconds=60):
            assert ex.remaining_seconds() < 61
            with ex.execution_options(timeout_seconds=seconds):
                assert ex.remaining_seconds() < 61


def test_waiting_goes_on_after_the_longest_wait_of_python(monkeypatch):
    monkeypatch.setattr(threading, "TIMEOUT_MAX", 0.02)
    with ex.execution_options(timeout_seconds=60):
        assert Work(0.1)("fine") == "fine"
    with ex.execution_options(timeout_seconds=0.1), pytest.raises(ex.ExecutionTimeout):
        Work(1)("late")


def test_compiled_calls_and_maps_work_within_a_timeout():
    f = ex.jit(lambda x: x * 2)
    with ex.execution_options(timeout_seconds=60):
        assert float(f(2.0)) == 4
        assert ex.pmap(lambda x: x * 2, 1)(jnp.ones(3)).tolist() == [2, 2, 2]
        assert float(ex.structural_jit(ex.operator(lambda x: x + 1))(jnp.float32(1))) == 2


def test_a_trace_has_times_nesting_and_threads(tmp_path):
    path = tmp_path / "trace.json"
    with ex.execution_options(trace_execution=path) as options:
        ex.pmap(Twice(0.05), num_workers=2)(np.arange(2))
        ex.jit(lambda x: x + 1)(jnp.ones(3))
    spans = {span.index: span for span in options.trace.spans}
    names = sorted(span.name for span in spans.values())
    assert names == ["<lambda>", "Twice", "Twice", "Work", "Work", "Work", "Work", "pmap(Twice)"]
    for span in spans.values():
        if span.name == "Work":
            outer = spans[span.parent]
            assert outer.name == "Twice"
            assert outer.thread == span.thread
            assert spans[outer.parent].name == "pmap(Twice)"
            assert span.depth == 2
            assert 0.045 < span.seconds <= outer.seconds
            assert outer.start <= span.start
    assert len({span.thread for span in spans.values() if span.name == "Twice"}) == 2
    rows = {row["name"]: row for row in options.trace.rows()}
    assert rows["Work"]["calls"] == 4
    assert rows["Work"]["seconds"] == pytest.approx(
        sum(span.seconds for span in spans.values() if span.name == "Work")
    )
    assert rows["Twice"]["own_seconds"] < 0.5 * rows["Twice"]["seconds"]
    assert "Twice" in str(options.trace)
    events = json.loads(path.read_text())["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert len(complete) == 8
    work = next(event for event in complete if event["name"] == "Work")
    assert work["dur"] == pytest.approx(1e6 * spans[work["args"]["index"]].seconds)
    with ex.execution_options():
        Work(0.0)(1)
    assert len(options.trace.spans) == 8


def test_an_error_is_noted_in_the_trace():
    bad = ex.operator(lambda x: 1 / x, host=True)
    with ex.execution_options(trace_execution=True) as options, pytest.raises(ZeroDivisionError):
        bad(0)
    assert [span.error for span in options.trace.spans] == ["ZeroDivisionError"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_workers": 0},
        {"max_workers": 1.5},
        {"timeout_seconds": 0},
        {"timeout_seconds": float("nan")},
        {"timeout_seconds": -float("inf")},
    ],
)
def test_bad_options(wrong):
    name = next(iter(wrong))
    with pytest.raises(ValueError, match=f"{name} is"), ex.execution_options(**wrong):
        pass


@pytest.mark.parametrize("wrong", ["a", "3", b"3", True, [1], object()])
def test_a_timeout_is_a_number(wrong):
    message = r"timeout_seconds is .*; wanted seconds above 0"
    with pytest.raises(TypeError, match=message), ex.execution_options(timeout_seconds=wrong):
        pass


@pytest.mark.parametrize("field", ["static_argnames", "donate_argnames"])
def test_names_of_arguments_are_texts(field):
    for wrong in (3, None, [3], ("x", 1), b"x"):
        with pytest.raises(TypeError, match=f"{field} is .*; wanted an argument's name"):
            ex.JITOptions(**{field: wrong})
    for right in ("x", ["x"], ("x",), {"x"}):
        assert getattr(ex.JITOptions(**{field: right}), field) == ("x",)


def test_threads_have_what_the_caller_has_set_in_jax():
    def seen(_=0):
        mesh = jax.sharding.get_abstract_mesh()
        config = (jax.config.jax_default_matmul_precision, jax.config.jax_default_device)
        return str((*config, jax.config.jax_enable_x64, jax.config.jax_debug_nans, mesh))

    device, op = jax.devices()[1], ex.operator(seen, host=True)
    mesh = jax.make_mesh((1,), ("i",), devices=[device])
    with jax.default_matmul_precision("highest"), jax.default_device(device), jax.debug_nans(True):
        with jax.enable_x64(True), jax.set_mesh(mesh), ex.execution_options(timeout_seconds=60):
            wanted = seen()
            assert op(0) == wanted
            assert set(ex.pmap(seen, 2, host=True)(np.arange(3))) == {wanted}
            assert ex.jit(lambda x: x + 1)(np.ones(2)).devices() == {device}
        contexts = ThreadContexts()
        wanted = seen()
    assert seen() != wanted
    with jax.enable_x64(True), contexts.enter():
        assert seen() == wanted
