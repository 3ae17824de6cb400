"""The other libraries' way from JPEG files to batches; each is optional.

Every peer reads the same files, crops the same boxes and flips the same images. An arm is a
function that runs an epoch and yields its batches, float32, in the order of the files (Grain's
processes take turns: see ``FIRST``): NHWC arrays, except torchvision's, NCHW. What an arm keeps
alive between epochs (processes, a built pipeline) it makes once.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

THREADS = 2
Arm = Callable[[], Iterator[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class FileWork:
    """The work of every arm.

    Attributes:
      paths: the N files.
      boxes: int32 [N, 4], the crop (top, left, height, width) of each image.
      flips: bool [N].
      size: height and width of the output.
      batch: images per batch; an incomplete last batch is dropped.
    """

    paths: Sequence[Path]
    boxes: np.ndarray
    flips: np.ndarray
    size: int
    batch: int
    mean: np.ndarray
    std: np.ndarray

    def batches(self) -> Iterator[range]:
        for first in range(0, len(self.paths) - self.batch + 1, self.batch):
            yield range(first, first + self.batch)


class Finish:
    """OpenCV's crop, resize, flip and normalize of a decoded image; picklable."""

    def __init__(self, work: FileWork) -> None:
        self.work = work
        self.scale = (1 / (255 * work.std)).astype(np.float32)
        self.bias = (-work.mean / work.std).astype(np.float32)

    def __call__(self, image: np.ndarray, i: int, out: np.ndarray | None = None) -> np.ndarray:
        import cv2

        work = self.work
        top, left, height, width = work.boxes[i]
        crop = image[top : top + height, left : left + width]
        resized = cv2.resize(crop, (work.size, work.size), interpolation=cv2.INTER_LINEAR)
        if work.flips[i]:
            resized = cv2.flip(resized, 1)
        out = np.empty((work.size, work.size, 3), np.float32) if out is None else out
        np.multiply(resized, self.scale, out=out)
        out += self.bias
        return out


def _in_threads(work: FileWork, decode: Callable[[Path], np.ndarray]) -> Arm:
    import cv2

    cv2.setNumThreads(1)
    pool = ThreadPoolExecutor(THREADS)
    finish = Finish(work)

    def epoch() -> Iterator[np.ndarray]:
        for rows in work.batches():
            out = np.empty((work.batch, work.size, work.size, 3), np.float32)

            def one(i: int, first: int = rows.start, out: np.ndarray = out) -> None:
                finish(decode(work.paths[i]), i, out[i - first])

            list(pool.map(one, rows))
            yield out

    return epoch


def _opencv_decode(path: Path) -> np.ndarray:
    import cv2

    return cv2.cvtColor(cv2.imread(str(path), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)


def opencv(work: FileWork) -> Arm:
    """imread, cvtColor, resize, flip in a pool of threads."""
    return _in_threads(work, _opencv_decode)


def simplejpeg(work: FileWork) -> Arm:
    """simplejpeg decodes, OpenCV does the rest, in a pool of threads."""
    import simplejpeg as decoder

    return _in_threads(work, lambda path: decoder.decode_jpeg(path.read_bytes()))


def pillow(work: FileWork) -> Arm:
    """Pillow decodes, OpenCV does the rest, in a pool of threads."""
    from PIL import Image

    return _in_threads(work, lambda path: np.asarray(Image.open(path).convert("RGB")))


class TorchFiles:
    """A map-style data set of torchvision: Pillow decodes, transforms.v2 does the rest."""

    def __init__(self, work: FileWork) -> None:
        self.work = work

    def __len__(self) -> int:
        return len(self.work.paths)

    def __getitem__(self, i: int) -> Any:
        import torch
        from PIL import Image
        from torchvision.transforms.v2 import functional

        work = self.work
        image = functional.pil_to_tensor(Image.open(work.paths[i]).convert("RGB"))
        top, left, height, width = (int(v) for v in work.boxes[i])
        image = functional.resized_crop(
            image, top, left, height, width, [work.size, work.size], antialias=True
        )
        if work.flips[i]:
            image = functional.horizontal_flip(image)
        image = functional.to_dtype(image, torch.float32, scale=True)
        return functional.normalize(image, work.mean.tolist(), work.std.tolist())


def torchvision(work: FileWork) -> Arm:
    """torch's DataLoader with two worker processes that live on."""
    import peers
    import torch

    peers.declare_torchvision_operators(torch)
    loader = torch.utils.data.DataLoader(
        TorchFiles(work),
        batch_size=work.batch,
        drop_last=True,
        num_workers=THREADS,
        persistent_workers=True,
        multiprocessing_context="fork",
        worker_init_fn=_one_torch_thread,
    )
    return lambda: (batch.numpy() for batch in loader)


def _one_torch_thread(_: int) -> None:
    import torch

    torch.set_num_threads(1)


def dali(work: FileWork) -> Arm:
    """A CPU pipeline with two threads, which decodes the boxes only."""
    from nvidia.dali import fn, pipeline_def, types

    order = iter(())

    def sample(_: Any) -> tuple[np.ndarray, ...]:
        nonlocal order
        i = next(order, None)
        if i is None:  # it reads ahead over the end
            order = iter(range(len(work.paths) // work.batch * work.batch))
            i = next(order)
        data = np.fromfile(work.paths[i], np.uint8)
        box = work.boxes[i].astype(np.float32)
        return data, box[:2], box[2:], np.int32(work.flips[i])

    @pipeline_def(batch_size=work.batch, num_threads=THREADS, device_id=None)
    def pipeline() -> Any:
        data, anchor, shape, flip = fn.external_source(sample, num_outputs=4, batch=False)
        crop = fn.decoders.image_slice(
            data, anchor, shape, axes=[0, 1], normalized_anchor=False, normalized_shape=False,
            device="cpu", output_type=types.RGB,
        )  # fmt: skip
        resized = fn.resize(
            crop, resize_x=work.size, resize_y=work.size, interp_type=types.INTERP_LINEAR
        )
        return fn.crop_mirror_normalize(
            resized, mirror=flip, dtype=types.FLOAT, output_layout="HWC",
            mean=(255 * work.mean).tolist(), std=(255 * work.std).tolist(),
        )  # fmt: skip

    built = pipeline()
    built.build()

    def epoch() -> Iterator[np.ndarray]:
        for _ in work.batches():
            yield built.run()[0].as_array()

    return epoch


class GrainFiles:
    """A random access source of Grain's: the number of a file."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> int:
        return i


class GrainDecode:
    """A file's number to its finished image; picklable."""

    def __init__(self, work: FileWork) -> None:
        self.finish = Finish(work)

    def __call__(self, i: int) -> np.ndarray:
        import cv2

        cv2.setNumThreads(1)
        return self.finish(_opencv_decode(self.finish.work.paths[i]), i)


def grain_threads(work: FileWork) -> Arm:
    """Grain with OpenCV, two reading threads."""
    return _grain(work, processes=0)


def grain_processes(work: FileWork) -> Arm:
    """Grain with OpenCV, two worker processes, started with each epoch."""
    return _grain(work, processes=THREADS)


def _grain(work: FileWork, processes: int) -> Arm:
    import grain

    source = grain.MapDataset.source(GrainFiles(len(work.paths))).map(GrainDecode(work))
    threads = grain.ReadOptions(num_threads=1 if processes else THREADS)

    def epoch() -> Iterator[np.ndarray]:
        data = source.to_iter_dataset(threads).batch(work.batch, drop_remainder=True)
        if processes:
            data = data.mp_prefetch(grain.MultiprocessingOptions(num_workers=processes))
        yield from data

    return epoch


#: which records of the order an arm's first batch holds, where not those from the first on
FIRST: dict[str, range] = {"Grain + OpenCV, processes": range(0, 1 << 30, THREADS)}

#: name -> (package, arm, whether it filters when it shrinks)
PEERS: dict[str, tuple[str, Callable[[FileWork], Arm], bool]] = {
    "OpenCV threads": ("cv2", opencv, False),
    "simplejpeg + OpenCV threads": ("simplejpeg", simplejpeg, False),
    "Pillow + OpenCV threads": ("PIL", pillow, False),
    "torchvision + DataLoader": ("torchvision", torchvision, True),
    "DALI CPU": ("nvidia.dali", dali, True),
    "Grain + OpenCV, threads": ("grain", grain_threads, False),
    "Grain + OpenCV, processes": ("grain", grain_processes, False),
}


def ffcv(python: str, root: Path, packed: Path, mode: str, side: int, work: FileWork) -> Arm:
    """Return an arm that runs ffcv in another interpreter, without transferring the batches."""
    script = Path(__file__).with_name("ffcv_epochs.py")
    images = len(work.paths) // work.batch * work.batch
    return _program(images, python, script, root, packed, mode, side, work.size, work.batch)


def regions_alone(binary: str, listing: Path, work: FileWork) -> Arm:
    """`benchmarks/native/bench_jpeg`: the boxes decoded from memory, and nothing made of them."""
    boxes = zip(work.paths, work.boxes.tolist(), strict=True)
    listing.write_text("".join(f"{' '.join(map(str, box))} {path}\n" for path, box in boxes))
    return _program(len(work.paths), binary, listing, THREADS)


def _program(images: int, *command: Any) -> Arm:
    """A program that does all the work for each line that it is given; it prints the number."""
    process = subprocess.Popen(
        [str(part) for part in command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    sending, receiving = process.stdin, process.stdout
    assert sending is not None
    assert receiving is not None

    def epoch() -> Iterator[None]:
        sending.write("\n")
        sending.flush()
        count = int(receiving.readline())
        assert count == images, count
        return iter(())

    return epoch


def made(work: FileWork) -> tuple[dict[str, Arm], list[str]]:
    """The arms that this machine has, and what is missing."""
    arms: dict[str, Arm] = {}
    missing = []
    for name, (package, arm, _) in PEERS.items():
        try:
            if importlib.util.find_spec(package) is None:
                raise ImportError(f"no module named {package}")
            arms[name] = arm(work)
        except ImportError as error:
            missing.append(f"{name}: {error}")
    return arms, missing
