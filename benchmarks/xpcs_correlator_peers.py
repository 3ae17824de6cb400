"""Other correlators on arrays in memory: boost-corr, scikit-beam and xpcs-correlator.

Reading files, making maps and starting a cluster are not part of their time. `make xpcs-peers`
installs them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from jaxkern.core.threads import num_threads


def boost_multitau(frames: Any) -> Callable[[], Any]:
    """G, IP and IF [tau, 3, pixels] in float32, with exact levels (max_count=4096), on the CPU.

    frames: [N, P]. The queues use at most 4 GB. Means over bins are not part of its time.
    """
    import torch
    from boost_corr import MultitauCorrelator

    torch.set_num_threads(num_threads())

    def run() -> Any:
        correlator = MultitauCorrelator(
            (1, frames.shape[1]), len(frames), device="cpu", max_memory=4.0, max_count=4096
        )
        for first in range(0, len(frames), 64):
            correlator.process(torch.from_numpy(frames[first : first + 64]))
        correlator.post_process()
        return correlator.get_results()[1]["G2"].numpy()

    return run


def g2_of_sums(sums: Any, static: Any, dynamic: Any) -> np.ndarray:
    """g2 [tau, bins] of G, IP and IF [tau, 3, pixels], as boost-corr normalizes them."""
    means = np.apply_along_axis(lambda x: np.bincount(static, x)[1:], 2, sums)
    means /= np.bincount(static)[1:]
    ratio = means[:, 0] / (means[:, 1] * means[:, 2])
    bins = [np.unique(static[dynamic == b]) - 1 for b in range(1, int(dynamic.max()) + 1)]
    return np.stack([ratio[:, b].mean(axis=1) for b in bins], axis=1)


def skbeam_multitau(frames: Any, dynamic: Any) -> Callable[[], Any]:
    """g2 [lags, bins] and the lags of frames [N, H, W], with 4 levels of 8 lags."""
    from skbeam.core.correlation import multi_tau_auto_corr

    return lambda: multi_tau_auto_corr(4, 8, dynamic, frames)


def boost_twotime(frames: Any, edges: Any) -> Callable[[], Any]:
    """C [bins, N, N], its upper triangle, of frames [N, P]; bin b begins at edges[b]."""
    import torch
    from boost_corr import TwotimeCorrelator

    slices = [slice(int(a), int(b)) for a, b in itertools.pairwise(edges)]
    bins = list(range(1, len(slices) + 1))
    layout = {"dq_idx": bins, "dq_slc": slices, "sq_idx": bins, "sq_slc": slices}

    def run() -> Any:
        correlator = TwotimeCorrelator(layout, len(frames), (1, frames.shape[1]), device="cpu")
        correlator.process(torch.from_numpy(frames))
        correlator.compute_smooth_data("sqmap")
        matrices: list[Any] = []
        for payload in correlator.get_twotime_generator():
            matrices += [x for key, x in payload.items() if key.startswith("correlation_map")]
        return np.stack(matrices)

    return run


def numba_twotime(by_pixel: Mapping[str, Any], n_frames: int) -> Callable[[], Any]:
    """C [N, N] of one bin, its upper triangle, and the sums of all lags, on two threads.

    by_pixel: intensity, time_index and pixel_pointer, as xpcs-correlator orders events. Its kernel
    is compiled and does not hold the interpreter's lock; each thread runs it on half of the pixels.
    """
    from xpcscorr.correlators.sparse.base import _calculate_correlation_csc

    count, frame, begin = (by_pixel[k] for k in ("intensity", "time_index", "pixel_pointer"))
    pixels = len(begin) - 1

    def half(first: int, stop: int) -> tuple[Any, Any]:
        products, sums = np.zeros((n_frames, n_frames)), np.zeros(n_frames, np.int64)
        events = slice(int(begin[first]), int(begin[stop]))
        _calculate_correlation_csc(
            count[events], frame[events], begin[first : stop + 1] - begin[first], products, sums,
            np.zeros(n_frames), True,
        )  # fmt: skip
        return products, sums

    def run() -> Any:
        with ThreadPoolExecutor(2) as pool:
            parts = list(pool.map(half, (0, pixels // 2), (pixels // 2, pixels)))
        products, sums = (first + second for first, second in zip(*parts, strict=True))
        divisor = np.where(sums > 0, sums, 1).astype(np.float64)
        return products * pixels / divisor / divisor[:, None]

    return run
