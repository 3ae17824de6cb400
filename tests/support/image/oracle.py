"""An independent oracle: image transforms one by one in NumPy float64, never fused.

Written from the semantics of torchvision's v2 transforms. It uses neither the plan builder nor
other code under test, and identifies transforms by the names of their classes and fields.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def nearest_matrix(box: int, size: int) -> np.ndarray:
    weights = np.zeros((size, box))
    for i in range(size):
        weights[i, ((2 * i + 1) * box) // (2 * size)] = 1.0
    return weights


def bilinear_matrix(box: int, size: int) -> np.ndarray:
    weights = np.zeros((size, box))
    for i in range(size):
        position = max((i + 0.5) * box / size - 0.5, 0.0)
        first = min(int(position), box - 1)
        fraction = position - first
        weights[i, first] += 1.0 - fraction
        weights[i, min(first + 1, box - 1)] += fraction
    return weights


def antialias_matrix(box: int, size: int) -> np.ndarray:
    support = max(box / size, 1.0)
    centre = (np.arange(size) + 0.5) * box / size
    distance = np.abs(np.arange(box)[None] + 0.5 - centre[:, None]) / support
    weights = np.maximum(1.0 - distance, 0.0)
    return weights / weights.sum(axis=1, keepdims=True)


def cubic(a: float, x: np.ndarray) -> np.ndarray:
    x = np.abs(x)
    inner = (a + 2) * x**3 - (a + 3) * x**2 + 1
    outer = a * (x**3 - 5 * x**2 + 8 * x - 4)
    return np.where(x < 1, inner, np.where(x < 2, outer, 0.0))


def bicubic_matrix(box: int, size: int) -> np.ndarray:
    weights = np.zeros((size, box))
    for i in range(size):
        position = (i + 0.5) * box / size - 0.5
        for j in range(int(np.floor(position)) - 1, int(np.floor(position)) + 3):
            weights[i, min(max(j, 0), box - 1)] += cubic(-0.75, np.asarray(j - position))
    return weights


def bicubic_antialias_matrix(box: int, size: int) -> np.ndarray:
    centre = (np.arange(size) + 0.5) * box / size
    away = (np.arange(box)[None] + 0.5 - centre[:, None]) / max(box / size, 1.0)
    weights = cubic(-0.5, away)
    return weights / weights.sum(axis=1, keepdims=True)


MATRICES = {"nearest": nearest_matrix, "bilinear": bilinear_matrix, "antialias": antialias_matrix}


SIGNED = {"bicubic": bicubic_matrix, "bicubic antialias": bicubic_antialias_matrix}


def resize(
    image: np.ndarray, size: tuple[int, int], interpolation: str, antialias: bool, levels=False
):
    if image.shape[:2] == tuple(size):
        return image
    kind = "antialias" if interpolation == "bilinear" and antialias else interpolation
    if interpolation == "bicubic":
        matrix = SIGNED["bicubic antialias" if antialias else "bicubic"]
        for axis in (1, 0):
            lines = np.tensordot(matrix(image.shape[axis], size[axis]), image, (1, axis))
            image = np.moveaxis(lines, 0, axis)
            image = np.clip(image, 0, 255) if levels else image
        return image
    down = MATRICES[kind](image.shape[0], size[0])
    across = MATRICES[kind](image.shape[1], size[1])
    return np.einsum("ih,jw,hwc->ijc", down, across, image, optimize=True)


def shorter_edge(height: int, width: int, edge: int, limit: int | None) -> tuple[int, int]:
    short, long = min(height, width), max(height, width)
    new_short, new_long = edge, int(edge * long / short)
    if limit is not None and new_long > limit:
        new_short, new_long = int(limit * new_short / new_long), limit
    return (new_short, new_long) if height <= width else (new_long, new_short)


def pad(
    image: np.ndarray, left: int, top: int, right: int, bottom: int, fill, mode="constant"
) -> np.ndarray:
    if mode != "constant":
        return np.pad(image, ((top, bottom), (left, right), (0, 0)), mode)
    height, width, channels = image.shape
    out = np.empty((height + top + bottom, width + left + right, channels))
    out[...] = np.asarray(fill, float)
    out[top : top + height, left : left + width] = image
    return out


def center_crop(image: np.ndarray, height: int, width: int) -> np.ndarray:
    missing_h, missing_w = max(height - image.shape[0], 0), max(width - image.shape[1], 0)
    image = pad(
        image, missing_w // 2, missing_h // 2, (missing_w + 1) // 2, (missing_h + 1) // 2, 0.0
    )
    top = round((image.shape[0] - height) / 2.0)
    left = round((image.shape[1] - width) / 2.0)
    return image[top : top + height, left : left + width]


def kind_of(dtype) -> str:
    return "u8" if np.dtype(dtype) == np.uint8 else "float"


class Oracle:
    """Runs a chain on a list of images, whose sizes may differ until the chain sets one."""

    def __init__(self, images, scale=True):
        self.images = [np.asarray(image).astype(np.float64) for image in images]
        self.levels = all(np.asarray(image).dtype == np.uint8 for image in images)
        self.scale = scale
        self.labels = None

    def each(self, function):
        self.images = [function(image, n) for n, image in enumerate(self.images)]

    def run(self, transforms, params):
        for transform, inputs in zip(transforms, params, strict=True):
            values = {name: np.asarray(value) for name, value in inputs.items()}
            step = getattr(self, type(transform).__name__)
            step(transform, lambda name, n, v=values: v[name][n] if v[name].ndim else v[name][()])
        return self

    def RandomResizedCrop(self, t, p):
        def one(image, n):
            top, left = p("top", n), p("left", n)
            part = image[top : top + p("height", n), left : left + p("width", n)]
            return resize(part, t.size, t.interpolation, t.antialias, self.levels)

        self.each(one)

    def Resize(self, t, p):
        def one(image, n):
            size = t.size
            if not isinstance(size, tuple):
                size = shorter_edge(*image.shape[:2], size, t.max_size)
            return resize(image, size, t.interpolation, t.antialias, self.levels)

        self.each(one)

    def CenterCrop(self, t, p):
        self.each(lambda image, n: center_crop(image, *t.size))

    def Pad(self, t, p):
        self.each(lambda image, n: pad(image, *t.padding, t.fill, t.padding_mode))

    def RandomCrop(self, t, p):
        def one(image, n):
            left, above, right, below = t.padding or (0, 0, 0, 0)
            if t.pad_if_needed:
                more_h = max(t.size[0] - image.shape[0] - above - below, 0)
                more_w = max(t.size[1] - image.shape[1] - left - right, 0)
                left, above, right, below = (
                    side + more
                    for side, more in zip(
                        (left, above, right, below), (more_w, more_h) * 2, strict=True
                    )
                )
            image = pad(image, left, above, right, below, t.fill, t.padding_mode)
            top, left = p("top", n), p("left", n)
            return image[top : top + t.size[0], left : left + t.size[1]]

        self.each(one)

    def RandomHorizontalFlip(self, t, p):
        self.each(lambda image, n: image[:, ::-1] if p("flip", n) else image)

    def RandomVerticalFlip(self, t, p):
        self.each(lambda image, n: image[::-1] if p("flip", n) else image)

    def ToDtype(self, t, p):
        if kind_of(t.dtype) == "u8":
            self.to_u8(t.scale)
        else:
            self.to_float(t.scale)

    def to_u8(self, scale):
        if self.levels:
            self.each(lambda image, n: np.clip(np.round(image), 0, 255))
        else:
            factor = 255.999 if scale else 1.0
            self.each(lambda image, n: np.trunc(np.clip(image * factor, 0, 255.999)))
        self.levels = True

    def to_float(self, scale):
        if self.levels and scale:
            self.each(lambda image, n: image / 255.0)
        self.levels = False

    def Normalize(self, t, p):
        self.to_float(self.scale)
        self.each(lambda image, n: (image - np.asarray(t.mean)) / np.asarray(t.std))

    def RandomErasing(self, t, p):
        def one(image, n):
            if not p("erase", n):
                return image
            image = image.copy()
            top, left = p("top", n), p("left", n)
            image[top : top + p("height", n), left : left + p("width", n)] = t.value
            return image

        self.each(one)

    def mix(self, lams, one):
        before = list(self.images)
        self.images = [one(image, before[n - 1], n) for n, image in enumerate(before)]
        if self.labels is not None:
            old = self.labels
            self.labels = np.stack(
                [lam * old[n] + (1 - lam) * old[n - 1] for n, lam in enumerate(lams)]
            )

    def MixUp(self, t, p):
        lams = [p("lam", n) for n in range(len(self.images))]
        self.mix(lams, lambda image, other, n: lams[n] * image + (1 - lams[n]) * other)

    def CutMix(self, t, p):
        lams = []
        for n, image in enumerate(self.images):
            inside = np.zeros(image.shape[:2], bool)
            rows, columns = np.arange(image.shape[0]), np.arange(image.shape[1])
            in_rows = (rows >= p("top", n)) & (rows < p("top", n) + p("height", n))
            in_columns = (columns >= p("left", n)) & (columns < p("left", n) + p("width", n))
            inside[np.ix_(in_rows, in_columns)] = True
            lams.append((inside, 1 - inside.mean()))
        self.mix(
            [lam for _, lam in lams],
            lambda image, other, n: np.where(lams[n][0][..., None], other, image),
        )

    def finish(self, dtype, layout="NHWC"):
        """Return the batch as float64, rounded for a uint8 output (not for half types)."""
        if np.dtype(dtype) == np.uint8:
            self.to_u8(self.scale)
        else:
            self.to_float(self.scale)
        batch = np.stack(self.images) if self.images else np.zeros((0, 1, 1, 1))
        return batch.transpose(0, 3, 1, 2) if layout == "NCHW" else batch


def reference(aug, images, params, dtype, labels=None):
    """Return the expected `aug.apply(images, params)` as float64 (with labels: a pair)."""
    oracle = Oracle(images, aug.scale)
    oracle.labels = labels
    oracle.run(aug.transforms, params)
    out = oracle.finish(dtype, aug.layout)
    return out if labels is None else (out, oracle.labels)
