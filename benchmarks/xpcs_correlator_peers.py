"""Other correlators on arrays in memory: boost-corr, scikit-beam and xpcs-correlator.

What reads files, makes maps or starts a cluster is left out of their time. `make xpcs-peers`
installs them; `MISSING` names those that are not there.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

MISSING = []
for _module in ("boost_corr", "skbeam.core.correlation", "xpcscorr"):
    try:
        importlib.import_module(_module)
    except ImportError:
        MISSING.append(_module.split(".")[0])


def boost_multitau(frames: Any, block: int = 64, memory: float = 4.0) -> Callable[[], Any]:
    """G, IP and IF [tau, 3, pixels] in float32, with exact levels (max_count=4096), on the CPU.

    frames: [N, P]. memory: GB that its queues may take. Means over bins are left out of its time.
    """
    import torch
    from boost_corr import MultitauCorrelator

    def run() -> Any:
        correlator = MultitauCorrelator(
            (1, frames.shape[1]), len(frames), device="cpu", max_memory=memory, max_count=4096
        )
        for first in range(0, len(frames), block):
            correlator.process(torch.from_numpy(frames[first : first + block]))
        correlator.post_process()
        return correlator.get_results()[1]["G2"].numpy()

    return run


def g2_of_sums(sums: Any, static: Any, dynamic: Any) -> np.ndarray:
    """g2 [tau, bins] of G, IP and IF [tau, 3, pixels], as boost-corr normalizes them."""
    n_static = int(static.max())
    means = np.empty((*sums.shape[:2], n_static))
    counts = np.bincount(static, minlength=n_static + 1)[1:]
    for tau in range(sums.shape[0]):
        for kind in range(3):
            means[tau, kind] = np.bincount(static, sums[tau, kind], n_static + 1)[1:] / counts
    ratio = means[:, 0] / (means[:, 1] * means[:, 2])
    bins = [np.unique(static[dynamic == b]) - 1 for b in range(1, int(dynamic.max()) + 1)]
    return np.stack([ratio[:, b].mean(axis=1) for b in bins], axis=1)


def skbeam_multitau(frames: Any, dynamic: Any, levels: int) -> Callable[[], Any]:
    """g2 [lags, bins] and the lags of frames [N, H, W]."""
    from skbeam.core.correlation import multi_tau_auto_corr

    return lambda: multi_tau_auto_corr(levels, 8, dynamic, frames)


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
        made: list[Any] = []
        for payload in correlator.get_twotime_generator():
            made += [value for key, value in payload.items() if key.startswith("correlation_map")]
        return np.stack(made)

    return run


def numba_twotime(by_pixel: Mapping[str, Any], n_frames: int) -> Callable[[], Any]:
    """C [N, N] of one bin, its upper triangle, and the sums of all lags, on two threads.

    by_pixel: intensity, time_index and pixel_pointer, as xpcs-correlator orders events. Its kernel
    is compiled and its threads hold no lock; it is given half of the pixels a thread.
    """
    from xpcscorr.correlators.sparse.base import _calculate_correlation_csc

    count, frame, begin = (by_pixel[k] for k in ("intensity", "time_index", "pixel_pointer"))
    pixels = len(begin) - 1
    middle = pixels // 2

    def half(first: int, stop: int) -> tuple[Any, Any]:
        products, sums = np.zeros((n_frames, n_frames)), np.zeros(n_frames, np.int64)
        at = slice(int(begin[first]), int(begin[stop]))
        _calculate_correlation_csc(
            count[at], frame[at], begin[first : stop + 1] - begin[first], products, sums,
            np.zeros(n_frames), True,
        )  # fmt: skip
        return products, sums

    def run() -> Any:
        with ThreadPoolExecutor(2) as pool:
            parts = list(pool.map(half, (0, middle), (middle, pixels)))
        products, sums = parts[0][0], parts[0][1] + parts[1][1]
        products += parts[1][0]
        divisor = np.where(sums > 0, sums, 1).astype(np.float64)
        products *= pixels
        products /= divisor
        products /= divisor[:, None]
        return products

    return run


def two_threads() -> None:
    """As many threads for the others as ours may use."""
    from jaxkern.core.threads import num_threads

    with contextlib.suppress(ImportError):
        import torch

        torch.set_num_threads(num_threads())
