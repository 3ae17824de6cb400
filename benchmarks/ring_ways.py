"""The methods to make batches that `ring_batches.py` compares: jaxkern and other libraries."""

from __future__ import annotations

import contextlib
import itertools
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import jaxkern as jk

COUNT, BATCH, SIDE, SIZE = 4096, 64, 256, 224
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])

Epoch = Callable[[], Iterator[Any]]


class Ways:
    """Methods that yield the batches of an epoch."""

    def __init__(self, images: np.ndarray, order: np.ndarray):
        self.images, self.order = images, order
        self.aug = jk.image.Compose(
            [
                jk.image.RandomResizedCrop(SIZE, antialias=False),
                jk.image.RandomHorizontalFlip(0.5),
                jk.image.Normalize(MEAN.tolist(), STD.tolist()),
            ]
        )
        self.producer = jk.image.ChainProducer(self.aug, images[0], seed=0, epoch=0)
        keys = jk.random.record_keys(0, 0, np.arange(COUNT))
        drawn = jax.jit(lambda k: self.aug.sample(k, (SIDE, SIDE)))(keys)
        self.params = jax.tree.map(np.asarray, drawn)
        self.boxes = np.stack([self.params[0][k] for k in ("top", "left", "height", "width")], 1)
        self.flips = self.params[1]["flip"]
        self.reused = np.empty((BATCH, SIDE, SIDE, 3), np.uint8)

        source = {"image": images, "record": np.arange(len(images), dtype=np.int32)}
        self.pipe = jk.from_source(source, BATCH, shuffle=True)
        self.augmenting = self.pipe >> self.aug
        self._loader: Any = None

    def pipeline(self, augment: bool = False) -> Iterator[Any]:
        pipe = self.augmenting if augment else self.pipe
        pipe.epoch = 0
        for batch in pipe:
            yield batch["image"]

    def pipeline_order(self) -> Iterator[np.ndarray]:
        self.pipe.epoch = 0
        for batch in self.pipe:
            yield np.asarray(batch["record"])

    def torch_loader(self) -> Iterator[np.ndarray]:
        if self._loader is None:
            import torch
            import torch_loader

            shared = torch.from_numpy(self.images).share_memory_()
            crops = torch_loader.Crops(
                shared, self.boxes, self.flips, SIZE,
                (1 / (255 * STD)).astype(np.float32), (-MEAN / STD).astype(np.float32),
            )  # fmt: skip
            self._loader = torch_loader.Loader(crops, self.order, BATCH, 2)
        yield from self._loader()

    def records(self) -> Iterator[np.ndarray]:
        for begin in range(0, COUNT, BATCH):
            yield self.order[begin : begin + BATCH]

    def assembly(
        self, augment: bool = False, workers: int = 2, capacity: int = 4, times: int = 1
    ) -> Iterator[Any]:
        producers = {"image": self.producer} if augment else {}
        with jk.ring.Assembly(
            {"image": self.images}, np.tile(self.order, times), BATCH, workers=workers,
            capacity=capacity, producers=producers,
        ) as batches:  # fmt: skip
            for batch in batches:
                yield batch["image"]

    def one_thread(self) -> Iterator[np.ndarray]:
        for records in self.records():
            np.take(self.images, records, axis=0, out=self.reused, mode="clip")
            yield self.reused

    def python_thread(self) -> Iterator[jax.Array]:
        waiting: queue.Queue[Any] = queue.Queue(4)

        def produce() -> None:
            for records in self.records():
                waiting.put(self.images[records])
            waiting.put(None)

        thread = threading.Thread(target=produce)
        thread.start()
        while (batch := waiting.get()) is not None:
            yield jax.device_put(batch).block_until_ready()
        thread.join()

    def grain(self, threads: int, augment: bool = False) -> Iterator[np.ndarray]:
        import grain

        images, order = self.images, self.order

        class Records:
            def __len__(self) -> int:
                return COUNT

            def __getitem__(self, place: Any) -> Any:
                record = int(order[place])
                return (images[record], record) if augment else images[record]

        records = grain.MapDataset.source(Records())
        if augment:
            records = records.map(self._opencv())
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=4 * BATCH)
        yield from records.batch(BATCH).to_iter_dataset(options)

    def kernel(self, batches: list[jax.Array], compiled: Any) -> Iterator[jax.Array]:
        """Run the augmentation alone, on batches in memory."""
        for index, params in enumerate(self.batch_params()):
            yield compiled(batches[index % len(batches)], params).block_until_ready()

    def batch_params(self) -> Iterator[Any]:
        """Yield the random parameters of the records of each batch."""
        for records in self.records():
            yield jax.tree.map(lambda x, chosen=records: x[chosen], self.params)

    def _opencv(self) -> Callable[[Any], np.ndarray]:
        import cv2

        cv2.setNumThreads(1)
        scale = (1 / (255 * STD)).astype(np.float32)
        bias = (-MEAN / STD).astype(np.float32)

        def one(record: Any) -> np.ndarray:
            image, number = record
            top, left, height, width = self.boxes[number]
            crop = image[top : top + height, left : left + width]
            resized = cv2.resize(crop, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)
            if self.flips[number]:
                resized = cv2.flip(resized, 1)
            out: np.ndarray = np.multiply(resized, scale, dtype=np.float32)
            out += bias
            return out

        return one


def drained(epoch: Epoch) -> Callable[[], None]:
    def run() -> None:
        for batch in epoch():
            del batch  # the next one may take its place

    return run


@contextlib.contextmanager
def thread_spins() -> Iterator[None]:
    """A Python thread computes meanwhile, and gives the interpreter up every 5 ms only."""
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            sum(range(20_000))

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def process_spins() -> Iterator[None]:
    """The same in another process: the load on the machine without the interpreter's lock."""
    code = "print(flush=True)\nwhile True: sum(range(20_000))"
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    try:
        yield
    finally:
        other.kill()
        other.wait()


def compare(name: str, epoch: Epoch, expected: Epoch, levels: float) -> float:
    """Checks whole epochs; ``levels`` is in 1/255 of the range; returns the largest difference."""
    worst, count = 0.0, 0
    for got, want in itertools.zip_longest(epoch(), expected()):
        if got is None or want is None:
            raise SystemExit(f"{name} has another number of batches")
        a, b = np.asarray(got), np.asarray(want)
        if a.shape != b.shape or a.dtype != b.dtype:
            raise SystemExit(f"{name}: expected {b.dtype}{b.shape}, got {a.dtype}{a.shape}")
        scale = 1.0 if a.dtype == np.uint8 else STD * 255
        worst = max(worst, float(np.abs((a.astype(np.float32) - b) * scale).max()))
        count += len(a)
    if count != COUNT or not worst <= levels:
        raise SystemExit(f"{name} has {count} images that differ by up to {worst:.2f} levels")
    return worst
