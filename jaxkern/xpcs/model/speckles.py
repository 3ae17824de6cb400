"""Simulated detector frames: speckles whose field correlation is known, counted as photons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from jaxkern.core.arguments import check_integer, check_number
from jaxkern.core.progress import ProgressBar
from jaxkern.xpcs.detectors.frames import ArrayFrames
from jaxkern.xpcs.detectors.qmap import QMap
from jaxkern.xpcs.model.correlation import g2
from jaxkern.xpcs.model.models import Model
from jaxkern.xpcs.model.photons import covariance_root

#: (random numbers, pixels, modes) -> intensities [N, pixels], of mean 2 modes
Speckles: TypeAlias = Callable[[np.random.Generator, int, int], NDArray[Any]]

_BLOCK_COUNTS = 2**21  # frames times pixels that are drawn at a time
_MOST_FRAMES = 8192  # whose covariance is taken apart as a matrix


class SimulatedFrames(ArrayFrames):
    """Frames that `simulate_frames` made, and the bins of their pixels.

    Attributes:
      qmap: the bins, with q and phi where they are known.
    """

    def __init__(self, array: NDArray[Any], qmap: QMap, frame_time: float | None) -> None:
        super().__init__(array, name="simulated frames")
        self.qmap = qmap
        if frame_time is not None:
            self.metadata = {"frame_time": frame_time}


def simulate_frames(
    dynamics: Model | ArrayLike,
    params: ArrayLike | None = None,
    *,
    qmap: QMap | None = None,
    n_frames: int | None = None,
    frame_time: float | None = None,
    photons: Any = 1.0,
    pixels: int = 1000,
    modes: int = 3,
    seed: Any = 0,
    dtype: DTypeLike = np.uint16,
    out: Any = None,
    progress: bool = True,
) -> SimulatedFrames:
    """Frames as a detector would give them, of speckles with a known field correlation g1.

    Each pixel sees `modes` speckle patterns that do not interfere, complex Gaussian fields with
    the g1 of its dynamic bin between frames, and counts photons (Poisson) of their intensity. So
    g2 = 1 + g1^2 / modes, of pixels that are independent of each other.

    Args:
      dynamics: a model, with `params` [p], whose angles are the dynamic bins 1, 2, ...; or an array
        of the bins' g1: [n_bins] rates, for g1 = exp(-rate lag) with the lag in frames (diffusion:
        D q^2 frame_time); [n_bins, N] g1 at the lags 0 .. N - 1; [n_bins, N, N] g1 between frames.
      qmap: the bins of the detector's pixels; by default a row of `pixels` for each bin.
      n_frames: N, where `dynamics` are rates.
      frame_time: from a frame to the next in s, which readers are told; a model's own by default.
      photons: mean count of a pixel in a frame: a number, or [H, W].
      modes: speckle patterns that add up, 1 / contrast.
      seed: a whole number, a JAX key, or what NumPy makes generators of.
      dtype: of the counts.
      out: where the frames go, [N, H, W]: an array or a memory map. Beside them little memory is
        taken.
      progress: a bar on the terminal.

    Returns:
      `SimulatedFrames`: a source of frames with its `qmap`.

    Raises:
      ValueError: for shapes that do not agree, numbers out of range, a g1 that is no correlation
        function, and counts that `dtype` cannot hold.

    Example:
      >>> import jaxkern as jk
      >>> frames = jk.xpcs.simulate_frames([0.05, 0.2], n_frames=200, pixels=50, seed=1)
      >>> frames.shape, frames.qmap.n_dynamic
      ((200, 2, 50), 2)
      >>> c = jk.xpcs.twotime(frames, frames.qmap)
      >>> bool(abs(c.g2[1, 0] - 1 - 0.95**2 / 3) < 0.1)
      True
    """
    check_integer("pixels", pixels, 1)
    check_integer("modes", modes, 1)
    phi: ArrayLike | None = None
    q: ArrayLike | None = None
    if isinstance(dynamics, Model):
        geometry = dynamics.geometry
        with jax.enable_x64(True):
            squared = np.asarray(g2(dynamics, params, 1.0, 0.0))
        n, bins = _from_array(np.sqrt(np.clip(squared, 0.0, None)), None)
        q, phi = np.full(geometry.n_phi, geometry.q), geometry.phi
        frame_time = geometry.dt if frame_time is None else frame_time
    else:
        if params is not None:
            raise ValueError("params is given without a model; wanted a model, or g1 alone")
        n, bins = _from_array(np.asarray(dynamics, np.float64), n_frames)
    if qmap is None:
        qmap = QMap(np.repeat(np.arange(1, len(bins) + 1)[:, None], pixels, 1), q=q, phi=phi)
    if qmap.n_dynamic != len(bins):
        raise ValueError(
            f"dynamics has {len(bins)} bins and the qmap {qmap.n_dynamic}; wanted one for each"
        )
    if frame_time is not None:
        frame_time = check_number("frame_time", frame_time, 0.0)
    mean = np.asarray(photons, np.float64)
    if mean.shape not in ((), qmap.shape) or not (np.isfinite(mean) & (mean >= 0)).all():
        raise ValueError(
            f"photons is {photons!r:.80}; wanted a number of 0 or more, or such numbers of the "
            f"shape {qmap.shape}"
        )
    if out is None:
        out = np.zeros((n, *qmap.shape), dtype)
    elif out.shape != (n, *qmap.shape):
        raise ValueError(f"out has the shape {out.shape}; wanted {(n, *qmap.shape)}")
    else:
        out[...] = 0
    rates = np.broadcast_to(mean, qmap.shape).ravel() / (2 * modes)
    entropy = _entropy(seed)
    dynamic = qmap.dynamic.ravel()[qmap.pixels]
    most = np.iinfo(out.dtype).max if out.dtype.kind in "ui" else np.inf
    done = 0
    with ProgressBar(progress, "simulated frames", "pixels") as bar:
        for number, speckles in enumerate(bins, 1):
            of_bin = qmap.pixels[dynamic == number]
            size = max(_BLOCK_COUNTS // n, 1)
            for block in range(0, len(of_bin), size):
                chosen = of_bin[block : block + size]
                draw = np.random.default_rng([*entropy, number, block // size])
                counts = draw.poisson(speckles(draw, len(chosen), modes) * rates[chosen])
                if counts.max(initial=0) > most:
                    raise ValueError(
                        f"a pixel counts {counts.max()}, which {out.dtype} does not hold; wanted a "
                        "wider dtype or fewer photons"
                    )
                out[:, *np.divmod(chosen, qmap.shape[1])] = counts
                done += len(chosen)
                bar.update(done, qmap.n_pixels)
    return SimulatedFrames(out, qmap, frame_time)


def _from_array(g1: NDArray[Any], n_frames: int | None) -> tuple[int, list[Speckles]]:
    """The number of frames, and the speckles of each bin."""
    if g1.ndim == 1:
        n = check_integer("n_frames", n_frames, 1)
        if not (np.isfinite(g1) & (g1 >= 0)).all():
            raise ValueError(f"dynamics is {g1!r:.80}; wanted rates of 0 or more")
        return n, [_exponential(float(rate), n) for rate in g1]
    n = g1.shape[1] if g1.ndim > 1 else 0
    if not (g1.ndim == 2 or (g1.ndim == 3 and g1.shape[2] == n)) or n < 1:
        raise ValueError(
            f"dynamics has the shape {g1.shape}; wanted [n_bins], [n_bins, N] or [n_bins, N, N]"
        )
    if n_frames is not None and n_frames != n:
        raise ValueError(f"n_frames is {n_frames}, and dynamics is of {n} frames")
    return n, [_stationary(row) if g1.ndim == 2 else _rooted(row) for row in g1]


def _exponential(rate: float, n: int) -> Speckles:
    """g1 = exp(-rate lag): an Ornstein-Uhlenbeck process, from frame to frame."""
    keep = np.float32(np.exp(-rate))
    renew = np.float32(np.sqrt(-np.expm1(-2 * rate)))

    def speckles(draw: np.random.Generator, pixels: int, modes: int) -> NDArray[Any]:
        intensity = np.empty((n, pixels), np.float32)
        field = draw.standard_normal((2 * modes, pixels), np.float32)
        for frame in intensity:
            np.einsum("mp,mp->p", field, field, out=frame)
            field *= keep
            field += renew * draw.standard_normal(field.shape, np.float32)
        return intensity

    return speckles


def _stationary(g1: NDArray[Any]) -> Speckles:
    """g1 by lag: Fourier modes of a circle of frames twice as long (circulant embedding)."""
    n = len(g1)
    circle = np.concatenate([g1, g1[-2:0:-1]])
    power = np.fft.fft(circle).real
    if power.min() < -1e-9 * power.max():  # not a correlation function on the circle
        if n > _MOST_FRAMES:
            raise ValueError(
                f"g1 of {n} frames does not fall to a constant, so that its covariance is needed; "
                f"wanted at most {_MOST_FRAMES} frames"
            )
        lags = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
        return _rooted(g1[lags])
    amplitude = np.sqrt(np.clip(power, 0.0, None) / len(circle))[:, None]

    def speckles(draw: np.random.Generator, pixels: int, modes: int) -> NDArray[Any]:
        intensity = np.zeros((n, pixels))
        for _ in range(modes):
            parts = draw.standard_normal((2, len(circle), pixels))
            field = np.fft.fft(amplitude * (parts[0] + 1j * parts[1]), axis=0)[:n]
            intensity += field.real**2 + field.imag**2
        return intensity

    return speckles


def _rooted(g1: NDArray[Any]) -> Speckles:
    """g1 between frames: independent numbers times a root of the covariance."""
    mix = covariance_root(g1)

    def speckles(draw: np.random.Generator, pixels: int, modes: int) -> NDArray[Any]:
        intensity = np.zeros((len(g1), pixels))
        for _ in range(modes):
            parts = mix @ draw.standard_normal((len(g1), 2 * pixels))
            intensity += parts[:, :pixels] ** 2 + parts[:, pixels:] ** 2
        return intensity

    return speckles


def _entropy(seed: Any) -> list[int]:
    """Whole numbers that a generator can be made of, beside others."""
    if isinstance(seed, jax.Array):
        is_key = jnp.issubdtype(seed.dtype, jax.dtypes.prng_key)
        words = np.asarray(jax.random.key_data(seed) if is_key else seed).ravel()
    elif isinstance(seed, np.random.SeedSequence):
        words = seed.generate_state(4)
    elif isinstance(seed, np.random.Generator):
        words = seed.integers(2**32, size=4)
    else:
        return [check_integer("seed", seed, 0)]
    return [int(word) for word in words]
