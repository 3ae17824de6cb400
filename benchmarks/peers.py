"""Other libraries that crop, resize, flip and normalize images; each is optional.

Every peer reads the same images, crops the same boxes and flips the same images. An arm of `BATCH`
returns one batch of images in memory. An arm of `FILES` runs an epoch over files and yields its
batches, float32 NHWC (torchvision: NCHW), in the order of the files, except where `FIRST` says
otherwise. Processes and built pipelines persist between epochs. Peers that resize in 8 bits round
to levels before they normalize, so that their values differ by a level or two.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import harness
import numpy as np

THREADS = 2
LEVELS = 2.0  # largest difference: OpenCV rounds twice, DALI and torchvision once
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
SCALE, BIAS = (1 / (255 * STD)).astype(np.float32), (-MEAN / STD).astype(np.float32)
BOX = ("top", "left", "height", "width")

Arm = Callable[[], Iterator[Any]]


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of every arm.

    Attributes:
      images: the N images, u8 [N, H, W, 3], or the paths of N files.
      boxes: int32 [N, 4], the crop (top, left, height, width) of each image.
      flips: bool [N].
      size: height and width of the output.
      batch: images per batch; an incomplete last batch is dropped.
      order: int [N], the order of the images; None for that of `images`.
    """

    images: Sequence[Any]
    boxes: np.ndarray
    flips: np.ndarray
    size: int
    batch: int
    order: np.ndarray | None = None

    @property
    def records(self) -> np.ndarray:
        count = len(self.images) // self.batch * self.batch
        return (np.arange(len(self.images)) if self.order is None else self.order)[:count]

    def batches(self) -> Iterator[np.ndarray]:
        yield from self.records.reshape(-1, self.batch)


# OpenCV and albumentations -----------------------------------------------------------------------


def read_opencv(path: Path) -> np.ndarray:
    import cv2

    return cv2.cvtColor(cv2.imread(str(path), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)


def read_pillow(path: Path) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(path).convert("RGB"))


class OpenCV:
    """OpenCV's crop, resize, flip and normalize of one image; picklable."""

    def __init__(self, work: Work, read: Callable[[Any], np.ndarray] = np.asarray) -> None:
        import cv2  # noqa: F401

        self.work, self.read = work, read

    def __call__(self, i: int, out: np.ndarray | None = None) -> np.ndarray:
        import cv2

        cv2.setNumThreads(1)
        size, (top, left, height, width) = self.work.size, self.work.boxes[i]
        crop = self.read(self.work.images[i])[top : top + height, left : left + width]
        resized = cv2.resize(crop, (size, size), interpolation=cv2.INTER_LINEAR)
        if self.work.flips[i]:
            resized = cv2.flip(resized, 1)
        result: np.ndarray = np.multiply(resized, SCALE, out=out, dtype=np.float32)
        result += BIAS
        return result


def in_threads(work: Work, read: Callable[[Any], np.ndarray] = np.asarray) -> Arm:
    """Return an arm with OpenCV in a pool of threads, after reading by ``read``."""
    pool, one = ThreadPoolExecutor(THREADS), OpenCV(work, read)

    def epoch() -> Iterator[np.ndarray]:
        for records in work.batches():
            out = np.empty((work.batch, work.size, work.size, 3), np.float32)
            list(pool.map(one, records, out))
            yield out

    return epoch


def simplejpeg_in_threads(work: Work) -> Arm:
    import simplejpeg

    return in_threads(work, lambda path: simplejpeg.decode_jpeg(path.read_bytes()))


def albumentations(work: Work) -> Arm:
    """Its own functions for crop, resize, flip and normalize, two threads."""
    import albumentations.augmentations.crops.functional as crops
    import albumentations.augmentations.geometric.functional as geometric
    import cv2
    from albucore import normalize

    cv2.setNumThreads(1)
    pool = ThreadPoolExecutor(THREADS)
    mean, factor = (255 * MEAN).astype(np.float32), (1 / (255 * STD)).astype(np.float32)

    def one(i: int) -> np.ndarray:
        top, left, height, width = work.boxes[i]
        image = crops.crop(work.images[i], left, top, left + width, top + height)
        image = geometric.resize(image, (work.size, work.size), cv2.INTER_LINEAR)
        return normalize(geometric.hflip(image) if work.flips[i] else image, mean, factor)

    return lambda: (np.stack(list(pool.map(one, records))) for records in work.batches())


# torch and torchvision ---------------------------------------------------------------------------

_OPERATORS = (
    "nms qnms roi_align roi_pool ps_roi_align ps_roi_pool deform_conv2d _roi_align_backward "
    "_roi_pool_backward _ps_roi_align_backward _ps_roi_pool_backward _deform_conv2d_backward"
)


def torchvision_v2() -> Any:
    """Import torchvision.transforms.v2; its C++ operators need not match the installed torch."""
    import torch

    try:
        from torchvision.transforms import v2
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in _OPERATORS.split():
            library.define(f"{name}() -> Tensor")
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        from torchvision.transforms import v2

        v2.declared_operators = library  # keeps the declarations alive
    return v2


def torchvision_one(work: Work, image: Any, i: int, antialias: bool) -> Any:
    """Apply transforms.v2.functional to a u8 tensor [3, H, W]."""
    import torch

    functional = torchvision_v2().functional
    box, size = (int(v) for v in work.boxes[i]), [work.size, work.size]
    image = functional.resized_crop(image, *box, size, antialias=antialias)
    if work.flips[i]:
        image = functional.horizontal_flip(image)
    image = functional.to_dtype(image, torch.float32, scale=True)
    return functional.normalize(image, MEAN.tolist(), STD.tolist())


def torchvision(work: Work, antialias: bool = True, channels_last: bool = False) -> Arm:
    """transforms.v2 on tensors, two threads; resizing has a faster path if channels are last."""
    import torch

    torchvision_v2()
    torch.set_num_threads(THREADS)
    images = torch.from_numpy(work.images).permute(0, 3, 1, 2)
    images = images if channels_last else images.contiguous()

    def epoch() -> Iterator[np.ndarray]:
        for records in work.batches():
            results = [torchvision_one(work, images[i], i, antialias) for i in records]
            yield torch.stack(results).permute(0, 2, 3, 1).numpy()

    return epoch


class Records:
    """A map-style data set of a function of the record."""

    def __init__(self, count: int, one: Callable[[int], Any]) -> None:
        self.count, self.one = count, one

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        return self.one(i)


def torch_loader(work: Work, one: Callable[[int], Any]) -> Arm:
    """Return an arm with torch's DataLoader and two persistent worker processes."""
    import torch

    loader = torch.utils.data.DataLoader(
        Records(len(work.images), one),
        batch_size=work.batch,
        sampler=work.records.tolist(),
        num_workers=THREADS,
        persistent_workers=True,
        multiprocessing_context="fork",
        worker_init_fn=lambda _: torch.set_num_threads(1),
    )
    return lambda: (batch.numpy() for batch in loader)


def torchvision_files(work: Work) -> Arm:
    """Return an arm with a DataLoader: Pillow decodes, transforms.v2 does the rest."""
    pil_to_tensor = torchvision_v2().functional.pil_to_tensor

    def one(i: int) -> Any:
        from PIL import Image

        image = pil_to_tensor(Image.open(work.images[i]).convert("RGB"))
        return torchvision_one(work, image, i, antialias=True)

    return torch_loader(work, one)


# DALI and Grain -----------------------------------------------------------------------------------


def dali(work: Work, files: bool = False) -> Arm:
    """Return an arm with a CPU pipeline with two threads, which decodes only the boxes of files."""
    from nvidia.dali import fn, pipeline_def, types

    order = iter(())

    def sample(_: Any) -> tuple[np.ndarray, ...]:
        nonlocal order
        i = next(order, None)
        if i is None:  # it reads ahead beyond the end
            order = iter(work.records.tolist())
            i = next(order)
        image = np.fromfile(work.images[i], np.uint8) if files else work.images[i]
        box = work.boxes[i].astype(np.float32)
        return image, box[:2], box[2:], np.int32(work.flips[i])

    @pipeline_def(batch_size=work.batch, num_threads=THREADS, device_id=None)
    def pipeline() -> Any:
        image, anchor, shape, flip = fn.external_source(sample, num_outputs=4, batch=False)
        pixels = {"axes": [0, 1], "normalized_anchor": False, "normalized_shape": False}
        if files:
            pixels |= {"device": "cpu", "output_type": types.RGB}
        crop = (fn.decoders.image_slice if files else fn.slice)(image, anchor, shape, **pixels)
        resized = fn.resize(
            crop, resize_x=work.size, resize_y=work.size, interp_type=types.INTERP_LINEAR,
            antialias=files,
        )  # fmt: skip
        return fn.crop_mirror_normalize(
            resized, mirror=flip, dtype=types.FLOAT, output_layout="HWC",
            mean=(255 * MEAN).tolist(), std=(255 * STD).tolist(),
        )  # fmt: skip

    built = pipeline()
    built.build()
    return lambda: (built.run()[0].as_array() for _ in work.batches())


def grain(work: Work, one: Callable[[int], np.ndarray], threads: int) -> Arm:
    """Return an arm with Grain on images in memory; its threads make whole batches."""
    import grain

    batches = grain.MapDataset.source(work.records).map(one).batch(work.batch, drop_remainder=True)
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=4 * work.batch)
    return lambda: iter(batches.to_iter_dataset(options))


def grain_files(work: Work, processes: int = 0) -> Arm:
    """Return an arm with Grain on files: two threads, or processes that start with each epoch."""
    import grain

    source = grain.MapDataset.source(work.records).map(OpenCV(work, read_opencv))
    options = grain.ReadOptions(num_threads=1 if processes else THREADS)
    data = source.to_iter_dataset(options).batch(work.batch, drop_remainder=True)
    if processes:
        from absl import flags

        flags.FLAGS([""])  # Grain reads flags, which only programs of absl parse
        data = data.mp_prefetch(grain.MultiprocessingOptions(num_workers=processes))
    return lambda: iter(data)


def regions_alone(binary: str, listing: Path, work: Work) -> Arm:
    """Return an arm with `benchmarks/native/bench_jpeg`, which only decodes the boxes.

    The program runs an epoch for each line of its input and prints its images.
    """
    boxes = zip(work.images, work.boxes.tolist(), strict=True)
    listing.write_text("".join(f"{' '.join(map(str, box))} {path}\n" for path, box in boxes))
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [binary, str(listing), str(THREADS)], stdin=pipe, stdout=pipe, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    sink, source = process.stdin, process.stdout

    def epoch() -> Iterator[None]:
        sink.write("\n")
        sink.flush()
        count = int(source.readline())
        assert count == len(work.images), count
        return iter(())

    return epoch


# Name -> (function of the work, True if it filters with antialiasing).
Peers = dict[str, tuple[Callable[[Work], Arm], bool]]
BATCH: Peers = {
    "albumentations, 2 threads": (albumentations, False),
    "OpenCV, 2 threads": (in_threads, False),
    "DALI CPU, 2 threads": (dali, False),
    "torchvision v2, antialias": (torchvision, True),
    "torchvision v2, no antialias": (lambda work: torchvision(work, antialias=False), False),
    "torchvision v2, antialias, channels last": (
        lambda work: torchvision(work, channels_last=True), True
    ),
}  # fmt: skip
FILES: Peers = {
    "OpenCV threads": (lambda work: in_threads(work, read_opencv), False),
    "simplejpeg + OpenCV threads": (simplejpeg_in_threads, False),
    "Pillow + OpenCV threads": (lambda work: in_threads(work, read_pillow), False),
    "torchvision + DataLoader": (torchvision_files, True),
    "DALI CPU": (lambda work: dali(work, files=True), True),
    "Grain + OpenCV, threads": (grain_files, False),
    "Grain + OpenCV, processes": (lambda work: grain_files(work, THREADS), False),
}
#: Records of the first batch, where they are not the first ones of the order.
FIRST = {"Grain + OpenCV, processes": slice(None, None, THREADS)}
PACKAGES = [
    "albumentations", "opencv-python-headless", "simplejpeg", "pillow", "torch", "torchvision",
    "nvidia-dali-cuda130", "grain",
]  # fmt: skip


def available(table: Peers, work: Work) -> dict[str, Arm]:
    """Return the arms whose packages are installed."""
    arms: dict[str, Arm] = {}
    for name, (make, _) in table.items():
        with harness.optional(name):
            arms[name] = make(work)
    return arms
