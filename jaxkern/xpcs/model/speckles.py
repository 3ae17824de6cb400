"""Simulated detector frames and two-time correlations of speckles with Poisson counts."""

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
from jaxkern.xpcs.model.components import Components
from jaxkern.xpcs.model.correlation import g2
from jaxkern.xpcs.model.models import Model

#: function (generator, pixels, modes) -> intensities [N, pixels] with a mean of 2 modes
Speckles: TypeAlias = Callable[[np.random.Generator, int, int], NDArray[Any]]

_BLOCK_COUNTS = 2**21  # counts (frames times pixels) that are drawn at a time
_MAX_FRAMES = 8192  # largest covariance matrix that is factorized


class SimulatedFrames(ArrayFrames):
    """Frames of `simulate_frames`, and the bins of their pixels.

    Attributes:
      qmap: the bins, with q and phi if known.

    Example:
      >>> import jaxkern as jk
      >>> frames = jk.xpcs.simulate_frames([0.05, 0.2], n_frames=20, pixels=10)
      >>> frames.array.shape, frames.qmap.n_dynamic
      ((20, 2, 10), 2)
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
    """Simulate detector frames of speckles with a known field correlation g1.

    The intensity of a pixel is the sum of `modes` speckle patterns that do not interfere: complex
    Gaussian fields whose correlation between frames is the g1 of the pixel's dynamic bin. Counts
    are Poisson numbers of this intensity. Pixels are independent, and g2 = 1 + g1^2 / modes.

    Args:
      dynamics: a model, with `params` [p], whose angles are the dynamic bins 1, 2, ...; or an array
        of the bins' g1: [n_bins] rates, for g1 = exp(-rate lag) with the lag in frames (diffusion:
        D q^2 frame_time); [n_bins, N] g1 at the lags 0 .. N - 1; [n_bins, N, N] g1 between frames.
      qmap: bins of the detector's pixels; by default a row of `pixels` for each bin.
      n_frames: N, required for rates.
      frame_time: time between frames, s, for the metadata; that of a model by default.
      photons: mean count of a pixel in a frame: a number, or [H, W].
      modes: number of speckle patterns, 1 / contrast.
      seed: an integer, a JAX key, a NumPy `SeedSequence` or `Generator`.
      dtype: of the counts.
      out: destination of the frames [N, H, W], an array or a memory map.
      progress: True for a progress bar on a terminal.

    Returns:
      `SimulatedFrames`: a source of frames with its `qmap`.

    Raises:
      ValueError: for shapes that do not agree, numbers out of range, a g1 that is not a correlation
        function, and counts that exceed `dtype`.

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
    axes: dict[str, Any] = {}
    if isinstance(dynamics, Model):
        geometry = dynamics.geometry
        n, bins = _from_array(_field_correlation(dynamics, params), None)
        axes = {"q": np.full(geometry.n_phi, geometry.q), "phi": geometry.phi}
        frame_time = geometry.dt if frame_time is None else frame_time
    else:
        if params is not None:
            raise ValueError("params: expected a model as dynamics, got an array; pass g1 alone")
        n, bins = _from_array(np.asarray(dynamics, np.float64), n_frames)
    if qmap is None:
        qmap = QMap(np.repeat(np.arange(1, len(bins) + 1)[:, None], pixels, 1), **axes)
    if qmap.n_dynamic != len(bins):
        raise ValueError(f"dynamics: expected {qmap.n_dynamic} bins of qmap, got {len(bins)}")
    if frame_time is not None:
        frame_time = check_number("frame_time", frame_time, 0.0)
    mean = np.asarray(photons, np.float64)
    if mean.shape not in ((), qmap.shape) or not (np.isfinite(mean) & (mean >= 0)).all():
        raise ValueError(f"photons: expected one or {qmap.shape} numbers >= 0, got {photons!r:.80}")
    if out is None:
        out = np.zeros((n, *qmap.shape), dtype)
    elif out.shape != (n, *qmap.shape):
        raise ValueError(f"out: expected shape {(n, *qmap.shape)}, got {out.shape}")
    else:
        out[...] = 0
    rates = np.broadcast_to(mean, qmap.shape).ravel() / (2 * modes)
    entropy, dynamic = _entropy(seed), qmap.dynamic.ravel()[qmap.pixels]
    limit = np.iinfo(out.dtype).max if out.dtype.kind in "ui" else np.inf
    done = 0
    with ProgressBar(progress, "simulated frames", "pixels") as bar:
        for number, speckles in enumerate(bins, 1):
            bin_pixels = qmap.pixels[dynamic == number]
            size = max(_BLOCK_COUNTS // n, 1)
            for block in range(0, len(bin_pixels), size):
                chosen = bin_pixels[block : block + size]
                draw = np.random.default_rng([*entropy, number, block // size])
                counts = draw.poisson(speckles(draw, len(chosen), modes) * rates[chosen])
                if counts.max(initial=0) > limit:
                    raise ValueError(
                        f"dtype: expected a wider dtype for {counts.max()} counts, got {out.dtype}"
                    )
                out[:, *np.divmod(chosen, qmap.shape[1])] = counts
                done += len(chosen)
                bar.update(done, qmap.n_pixels)
    return SimulatedFrames(out, qmap, frame_time)


def simulate_photons(
    model: Model,
    params: ArrayLike,
    *,
    photons: float = 1.0,
    pixels: int = 1000,
    modes: int = 3,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Simulate two-time correlations [n_phi, n_t, n_t] of photon counts, including their noise.

    Counts are those of `simulate_frames`. Frames are correlated as in a measurement,
    C(t, t') = P sum I I' / (sum I sum I') over the P pixels of an angle. The contrast is 1 / modes
    and the offset 1 (to 1 / pixels). Unlike that of `simulate`, the noise is correlated between
    points, as in measured data.

    Args:
      model: a model with the angles phi.
      params: its parameters [p].
      photons, pixels, modes, seed: as in `simulate_frames`.

    Raises:
      ValueError: for numbers that are not positive, and a g1 that is not a correlation function.

    Example:
      >>> import numpy as np
      >>> from jaxkern import xpcs
      >>> t = 0.1 * np.arange(20)
      >>> model = xpcs.Static(xpcs.Geometry(q=0.01, gap=None, dt=0.1, t=t, phi=[0.0, 90.0]))
      >>> xpcs.simulate_photons(model, model.defaults, photons=0.5).shape
      (2, 20, 20)
    """
    for name, value in (("photons", photons), ("pixels", pixels), ("modes", modes)):
        if not value > 0:
            raise ValueError(f"{name}: expected a number > 0, got {value!r}")
    g1, draw = _field_correlation(model, params), np.random.default_rng(seed)
    correlations = np.empty(g1.shape)
    for angle, matrix in enumerate(g1):
        intensity = _from_covariance(matrix)(draw, pixels, modes) * (photons / (2 * modes))
        counts = draw.poisson(intensity).astype(np.float64)
        total = counts.sum(axis=1)
        total[total == 0] = 1.0
        correlations[angle] = pixels * (counts @ counts.T) / np.outer(total, total)
    return correlations


def _field_correlation(model: Model, params: Any) -> NDArray[Any]:
    """Return g1 [n_phi, n_t, n_t] of a model; complex for a model of components."""
    with jax.enable_x64(True):
        if isinstance(model, Components):
            B, A, P = map(np.asarray, model.phases(params))
            field = np.exp(B + 1j * P)
            decay = np.exp(-np.abs(A[..., :, None] - A[..., None, :]))
            terms = field[..., :, None] * decay * field[..., None, :].conj()
            return np.asarray(terms.sum(axis=1))
        squared = np.asarray(g2(model, params, 1.0, 0.0))
    return np.asarray(np.sqrt(np.clip(squared, 0.0, None)))


def _from_array(g1: NDArray[Any], n_frames: int | None) -> tuple[int, list[Speckles]]:
    """Return the number of frames, and the speckles of each bin."""
    if g1.ndim == 1:
        n = check_integer("n_frames", n_frames, 1)
        if not (np.isfinite(g1) & (g1 >= 0)).all():
            raise ValueError(f"dynamics: expected rates >= 0, got {g1!r:.80}")
        return n, [_exponential(float(rate), n) for rate in g1]
    n = g1.shape[1] if g1.ndim > 1 else 0
    if not (g1.ndim == 2 or (g1.ndim == 3 and g1.shape[2] == n)) or n < 1:
        raise ValueError(
            f"dynamics: expected [n_bins], [n_bins, N] or [n_bins, N, N], got shape {g1.shape}"
        )
    if n_frames is not None and n_frames != n:
        raise ValueError(f"n_frames: expected {n}, as in dynamics, got {n_frames}")
    return n, [_stationary(row) if g1.ndim == 2 else _from_covariance(row) for row in g1]


def _exponential(rate: float, n: int) -> Speckles:
    """Return speckles with g1 = exp(-rate lag), from an Ornstein-Uhlenbeck process."""
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


def _summed(field: Callable[[np.random.Generator, int], Any], n: int) -> Speckles:
    """Return speckles of independent modes; `field` draws the [n, pixels] complex field of one."""

    def speckles(draw: np.random.Generator, pixels: int, modes: int) -> NDArray[Any]:
        intensity = np.zeros((n, pixels))
        for _ in range(modes):
            real, imaginary = field(draw, pixels)
            intensity += real**2 + imaginary**2
        return intensity

    return speckles


def _stationary(g1: NDArray[Any]) -> Speckles:
    """Return speckles with g1 by lag, from circulant embedding in twice the frames."""
    n = len(g1)
    circle = np.concatenate([g1, g1[-2:0:-1]])
    power = np.fft.fft(circle).real
    if power.min() < -1e-9 * power.max():  # not a correlation function on the circle
        if n > _MAX_FRAMES:
            limit = f"{_MAX_FRAMES} frames for a g1 that does not decay"
            raise ValueError(f"dynamics: expected at most {limit}, got {n}")
        return _from_covariance(g1[np.abs(np.subtract.outer(np.arange(n), np.arange(n)))])
    amplitude = np.sqrt(np.clip(power, 0.0, None) / len(circle))[:, None]

    def field(draw: np.random.Generator, pixels: int) -> Any:
        parts = draw.standard_normal((2, len(circle), pixels))
        values = np.fft.fft(amplitude * (parts[0] + 1j * parts[1]), axis=0)[:n]
        return values.real, values.imag

    return _summed(field, n)


def _from_covariance(g1: NDArray[Any]) -> Speckles:
    """Return speckles with g1 between frames, from a root R of the covariance, R R^T = g1."""
    values, vectors = np.linalg.eigh(g1)
    if values[0] < -1e-6 * values[-1]:
        raise ValueError(
            f"g1: expected a correlation function, got the negative eigenvalue {values[0]:.3g}"
        )
    mix, n = vectors * np.sqrt(np.clip(values, 0.0, None)), len(g1)

    def field(draw: np.random.Generator, pixels: int) -> Any:
        real, imaginary = np.split(draw.standard_normal((n, 2 * pixels)), 2, axis=1)
        values = mix @ (real + 1j * imaginary)
        return values.real, values.imag

    return _summed(field, n)


def _entropy(seed: Any) -> list[int]:
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
