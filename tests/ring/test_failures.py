"""Failures whose exceptions resist being reported.

Would catch: a failure that is lost, and a consumer that waits for it forever, because its text
cannot be encoded, is huge, or raises; an exception that is copied; a native message that is not
valid text; an error of a thread that never reaches the consumer.
"""

from __future__ import annotations

import ctypes
import threading
from typing import ClassVar

import jax
import numpy as np
import pytest
from support.errors import raises

import jaxkern as jk
from jaxkern.core.failures import describe_exception, note, notes_of

WAIT = 20  # seconds until a test says that something hangs


class Unprintable(Exception):
    def __str__(self):
        raise OSError("no text")


class EndsInText(BaseException):
    def __str__(self):
        raise SystemExit("in __str__")


class EndlessText(BaseException):
    def __str__(self):
        raise EndlessText


class Unmovable(Exception):
    """Cannot be pickled or copied, and takes no notes or other attributes."""

    def __init__(self, lock):
        super().__init__(lock)

    def __reduce__(self):
        raise TypeError("stays where it is")

    __copy__ = __deepcopy__ = __reduce__

    def __setattr__(self, name, value):
        raise AttributeError(name)

    def add_note(self, text):
        raise RuntimeError("no notes")


class Meta(type):
    @property
    def __name__(cls):
        raise LookupError("no name")


class Nameless(Exception, metaclass=Meta):
    pass


def with_bad_notes():
    error = ValueError("notes")
    error.__notes__ = 3
    return error


FAILURES = {
    "surrogate": lambda: ValueError("\udcff"),
    "long": lambda: ValueError("x" * 100_000_000),
    "zero": lambda: ValueError("a\0b"),
    "unprintable": Unprintable,
    "unmovable": lambda: Unmovable(threading.Lock()),
    "notes": with_bad_notes,
    "base": lambda: BaseException("base"),
    "exit": lambda: GeneratorExit("exit"),
}


@pytest.fixture(params=FAILURES)
def error(request):
    return FAILURES[request.param]()


def assert_raises(error, call, *arguments):
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        call(*arguments)
    assert caught.value is error


def test_a_ring_delivers_the_very_exception(error):
    ring = jk.ring.Ring(np.zeros(1, np.float32))
    assert ring.fail(error) == 0
    with pytest.raises(type(error)), ring.slot():
        raise error
    ring.finish()
    for _ in range(2):
        assert_raises(error, ring.get, WAIT)
    with pytest.raises(StopIteration):
        ring.get(WAIT)
    assert ring._errors == {}


def test_an_exception_in_the_text_waits_for_the_report():
    ring = jk.ring.Ring(np.zeros(1, np.float32))
    with pytest.raises(SystemExit):
        ring.fail(EndsInText())
    with pytest.raises(EndsInText):
        ring.get(WAIT)


def test_a_handler_fails_a_batch_in_the_middle_of_another_failure():
    ring = jk.ring.Ring(np.zeros(1, np.float32))

    class FailsAnother(OSError):
        """Its text fails a batch, as a signal handler may at any moment."""

        def __str__(self):
            ring.fail(LookupError("first"))
            return "second"

    failing = threading.Thread(target=ring.fail, args=(FailsAnother(),), daemon=True)
    failing.start()
    failing.join(WAIT)
    with pytest.raises(LookupError):
        ring.get(WAIT)
    with pytest.raises(FailsAnother):
        ring.get(WAIT)


@pytest.mark.parametrize("kind", [EndsInText, EndlessText])
def test_threads_outlive_what_a_text_raises(kind):
    def order():
        yield np.arange(2)
        raise kind

    with jk.ring.Assembly({"x": np.arange(2)}, order(), 2) as batches:
        batches.get(WAIT)
        with pytest.raises(kind):
            batches.get(WAIT)
        with pytest.raises(StopIteration):
            batches.get(WAIT)

    def node(batch):
        if 2 <= batch["x"][0] < 6:
            raise kind
        return batch

    iterator = iter(jk.from_source({"x": np.arange(8)}, 1, num_workers=2) >> node)
    assert [int(next(iterator)["x"][0]) for _ in range(2)] == [0, 1]
    for _ in range(4):
        with pytest.raises(kind):
            next(iterator)
    assert [int(batch["x"][0]) for batch in iterator] == [6, 7]

    def items():
        yield np.int32(0)
        raise kind

    fetched = jk.prefetch_to_device(items())
    fetched.get(WAIT)
    for _ in range(2):  # its own, and what came of telling it
        with pytest.raises(BaseException):  # noqa: B017, PT011
            fetched.get(WAIT)
    with pytest.raises(StopIteration):
        fetched.get(WAIT)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("where", ["node", "source"])
def test_a_pipeline_delivers_it_in_its_place(error, where, num_workers):
    class Source:
        def __len__(self):
            return 12

        def __getitem__(self, i):
            if where == "source" and i == 5:
                raise error
            return {"x": np.int32(i)}

    def node(batch):
        if where == "node" and 5 in batch["x"]:
            raise error
        return batch

    iterator = iter(jk.from_source(Source(), 4, num_workers=num_workers) >> node)
    assert next(iterator)["x"].tolist() == [0, 1, 2, 3]
    assert_raises(error, next, iterator)
    assert [batch["x"].tolist() for batch in iterator] == [[8, 9, 10, 11]]


def test_a_prefetcher_delivers_it(error):
    def items():
        yield np.int32(0)
        raise error

    with jk.prefetch_to_device(items()) as fetched:
        assert int(fetched.get(WAIT)) == 0
        assert_raises(error, fetched.get, WAIT)
        with pytest.raises(StopIteration):
            fetched.get(WAIT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_prefetcher_tells_what_else_fails_in_its_thread():
    class Stateful:
        """Its state cannot be read after the first item."""

        taken = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.taken += 1
            if self.taken > 3:
                raise LookupError("item")
            return np.int32(self.taken)

        def get_state(self):
            if self.taken > 3:
                raise SystemExit("state")
            if self.taken > 1:
                raise OSError("state")
            return self.taken

        def set_state(self, state):
            raise NotImplementedError

    fetched = jk.prefetch_to_device(Stateful())
    assert int(fetched.get(WAIT)) == 1
    for _ in range(2):
        with raises(OSError, "state"):
            fetched.get(WAIT)
    with raises(LookupError, "item"):  # its own failure comes before that of its state
        fetched.get(WAIT)
    fetched.close()

    class Broken(np.ndarray):
        @property
        def flags(self):
            raise KeyboardInterrupt("while it is copied")

    fetched = jk.prefetch_to_device([np.zeros(3).view(Broken)])
    with raises(KeyboardInterrupt, "while it is copied"):
        fetched.get(WAIT)


def test_the_order_of_an_assembly(error):
    def order():
        yield np.arange(4)
        raise error

    with jk.ring.Assembly({"x": np.arange(10)}, order(), 2) as batches:
        assert len([batches.get(WAIT), batches.get(WAIT)]) == 2
        assert_raises(error, batches.get, WAIT)
        with pytest.raises(StopIteration):
            batches.get(WAIT)


def test_a_ring_that_closes_within_a_node_does_not_end_the_workers():
    other = jk.ring.Ring(np.zeros(1, np.float32))
    other.close()

    def node(batch):
        if batch["x"][0] % 2:
            other.get()
        return batch

    iterator = iter(jk.from_source({"x": np.arange(9)}, 1, num_workers=2) >> node)
    found = []
    for _ in range(9):
        try:
            found.append(int(next(iterator)["x"][0]))
        except jk.ring.RingClosed:
            found.append(-1)
    assert found == [0, -1, 2, -1, 4, -1, 6, -1, 8]


def test_programs_show_the_text(error):
    ring = jk.ring.Ring(np.zeros(1, np.float32))
    ring.fail(error)
    pop = jax.jit(lambda token: jk.ring.pop(ring, token))
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(pop(ring.token()))
    message = str(caught.value)
    assert "the producer of batch 0 failed: " in message
    assert len(message) < 10_000


class Abi(ctypes.Structure):
    """JaxkernProducer of core/producer.h."""

    hook = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    run_type = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 3, ctypes.c_size_t)
    _fields_ = [
        ("version", ctypes.c_uint32), ("size", ctypes.c_uint32), ("state", ctypes.c_void_p),
        ("retain", hook), ("release", hook), ("row_bytes", ctypes.c_int64),
        ("output_bytes", ctypes.c_int64), ("operands", ctypes.c_int64),
        ("operand_bytes", ctypes.c_void_p), ("run", run_type),
    ]  # fmt: skip


class Saying:
    """A native producer that fails, with these bytes as its message."""

    struct = jax.ShapeDtypeStruct((), np.uint8)
    name = b"jaxkern.producer.v3"  # a capsule does not keep it
    made: ClassVar[list] = []  # nor what it points to

    def __init__(self, said: bytes):
        def run(state, records, message, size):
            ctypes.memmove(message, said + b"\0", min(len(said) + 1, size))
            return -1

        hooks = [Abi.hook(lambda state: None)] * 2
        size = ctypes.sizeof(Abi)
        self.abi = Abi(3, size, None, *hooks, 1, 1, 0, None, Abi.run_type(run))
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, Abi.hook]
        self.capsule = new(ctypes.addressof(self.abi), self.name, Abi.hook(0))
        self.made.append(self.abi)

    def operands(self, records):
        return []


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("10 µm 🍎".encode(), "10 µm 🍎"),
        (b"xx" + "é".encode() * 600, "xx" + "é" * 510 + r"\?"),  # cut off within a character
        (b"\xff\xed\xa0\x80\xc0\x80\xf4\x90\x80\x80|", r"\?{10}\|"),
    ],
)
def test_messages_of_native_producers_are_text(said, shown):
    rows = np.zeros(4, np.uint8)
    with jk.ring.Assembly({"x": rows}, np.arange(4), 2, producers={"x": Saying(said)}) as batches:
        with pytest.raises(jk.ring.ProducerError, match=f"records 0 to 1: {shown}"):
            batches.get(WAIT)
        with pytest.raises(jax.errors.JaxRuntimeError, match=f"records 2 to 3: {shown}"):
            jax.block_until_ready(jax.jit(batches.pop)(batches.token()))


def test_descriptions_and_notes():
    assert describe_exception(ValueError("\udcff")) == "ValueError: \\udcff"
    assert describe_exception(Unprintable()) == "Unprintable"
    assert describe_exception(Nameless("why")) == "Nameless: why"
    assert describe_exception(ValueError("x" * 10_000)) == "ValueError: " + "x" * 2000
    error = ValueError("x")
    note(error, "{} and {!r}", 1, "two")
    note(error, "{} and {!r}", 1, "two")
    note(error, "{}", Unprintable())
    assert notes_of(error) == ["1 and 'two'"]
    for resists in (with_bad_notes(), Unmovable(0)):
        note(resists, "a note")
