"""Results of the correlators, multi-tau delays, and g2 with its errors from sums over pixels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arguments import check_integer
from jaxkern.xpcs.correlators.selection import BinLabels, FrameSelection, PixelGroups
from jaxkern.xpcs.detectors.qmap import QMap
from jaxkern.xpcs.onetime.fit import fit_g2
from jaxkern.xpcs.onetime.result import G2Fit

# Standard errors of fewer groups are too uncertain for weights.
_LEAST_GROUPS = 8


_NO_RATES = (
    "frame_time: expected the time between frames in s, for rates in 1/s, got None; "
    "pass frame_time to {}, or use jaxkern.xpcs.fit_g2 with the delays in frames"
)


@dataclass(frozen=True, eq=False)
class Overview:
    """Means over the frames that were correlated; sums of integer counts are exact.

    Attributes:
      mean_image: [H, W] mean counts of a frame, including pixels where the mask is 0.
      intensity: [N] mean counts of a pixel of the map in each frame.
      static_means: [n_static] mean counts of a static bin's pixels in a frame; NaN without pixels.
      static_means_parts: [10, n_static] the same for ten parts in time.
      mean_square: [H, W] mean squared counts, from which the variance in time follows; None in
        results read from a file.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> frames = np.random.default_rng(0).poisson(2.0, (40, 4, 4)).astype("u1")
      >>> qmap = jk.xpcs.QMap(np.ones((4, 4), int), q=[0.01])
      >>> overview = jk.xpcs.multitau(frames, qmap, overview=True).overview
      >>> overview.mean_image.shape, overview.intensity.shape
      ((4, 4), (40,))
    """

    mean_image: NDArray[np.float64]
    intensity: NDArray[np.float64]
    static_means: NDArray[np.float64]
    static_means_parts: NDArray[np.float64]
    mean_square: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class BinResult:
    """Fields of results of both kinds, see `MultiTauResult`."""

    bins: NDArray[np.int64]
    q: NDArray[np.float64] | None
    phi: NDArray[np.float64] | None
    n_pixels: NDArray[np.int64]
    n_frames: int
    frame_time: float | None
    qmap: QMap
    overview: Overview | None
    config: dict[str, Any]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class MultiTauResult(BinResult):
    """g2 of each dynamic bin at the multi-tau delays.

    Attributes:
      delay: [n_tau] in frames.
      tau: [n_tau] in s; None if the time between frames is unknown.
      bins: [n_bins] the dynamic bins, from 1.
      g2: [n_tau, n_bins]; NaN at delays that no pair of frames has.
      g2_err: [n_tau, n_bins], the standard error over the bin's pixels.
      q: [n_bins] in 1/Angstrom, or None.
      phi: [n_bins] in degrees, or None.
      n_pixels: [n_bins] pixels of each bin.
      n_pairs: [n_tau] the number of pairs of sums of frames in a pixel's mean product.
      n_frames: the number of frames, or sums of frames, that were correlated.
      frame_time: time between them in s, or None.
      qmap: the map of the bins.
      overview: means of the frames, for plots and files; None unless requested.
      config: the arguments: dpl, normalize, begin, end, stride, average, bad_frames (all that were
        left out), hot_pixels ([row, column] of all that were detected), and others.
      parts: results of equal parts of the run, in time; empty unless requested.
      g2_groups: [groups, n_tau, n_bins] jackknife pseudo-values of g2 of groups of neighbouring
        pixels, for errors of fits; NaN for bins with fewer pixels; None unless requested.
      warnings: descriptions of doubtful bins and pixels; each was also issued as a
        `CorrelationWarning`.
    """

    delay: NDArray[np.int64]
    tau: NDArray[np.float64] | None
    g2: NDArray[np.float64]
    g2_err: NDArray[np.float64]
    n_pairs: NDArray[np.int64]
    parts: tuple[MultiTauResult, ...] = ()
    g2_groups: NDArray[np.float64] | None = None

    @property
    def g2_cov(self) -> NDArray[np.float64]:
        """[n_bins, n_tau, n_tau] covariance of g2 between delays, from groups of pixels.

        Its rank is less than the number of groups. ValueError without groups.
        """
        if self.g2_groups is None:
            raise ValueError("g2_cov: expected groups of pixels, got none; pass groups to multitau")
        groups = self.g2_groups - self.g2_groups.mean(0)
        n = len(groups)
        return np.asarray(np.einsum("kib,kjb->bij", groups, groups) / (n * (n - 1)))

    def with_frame_time(self, seconds: float) -> MultiTauResult:
        """Return the result with delays in s, for detector frames that are `seconds` apart.

        Frames that were skipped or summed are taken into account. ValueError unless `seconds` > 0.
        """
        if not seconds > 0:
            raise ValueError(f"frame_time: expected seconds > 0, got {seconds}")
        step = seconds * self.config["stride"] * self.config["average"]
        parts = tuple(part.with_frame_time(seconds) for part in self.parts)
        return replace(self, tau=self.delay * step, frame_time=step, parts=parts)

    def fit_g2(self, model: Any = "exponential", **options: Any) -> G2Fit:
        """Fit g2 of all bins, see `jaxkern.xpcs.fit_g2`.

        With `groups` of `multitau`, errors come from a jackknife over groups of pixels, of which 8
        or more also give the weights of the delays in place of `g2_err`; else, with `parts`, from
        one over parts of the run. Both include the correlation of noise between delays. Without,
        errors are those of independent noise, which are too small.

        Args:
          model: "exponential", "stretched", "double", "shear-gaussian", "shear-sinc" or a function.
          **options: share, bounds, loss and others of `jaxkern.xpcs.fit_g2`.

        Raises:
          ValueError: the time between frames is unknown, or as `jaxkern.xpcs.fit_g2`.

        Example:
          >>> import jaxkern as jk
          >>> frames = jk.xpcs.simulate_frames([0.02, 0.1], n_frames=2000, pixels=100)
          >>> r = jk.xpcs.multitau(frames, frames.qmap, groups=20, frame_time=1e-3)
          >>> fit = r.fit_g2()
          >>> fit.error_method, bool(abs(fit.params["rate"][0] - 20) < 4 * fit.errors["rate"][0])
          ('jackknife over 20 groups of pixels', True)
        """
        if self.tau is None:
            raise ValueError(_NO_RATES.format("multitau"))
        labels: dict[str, Any] = {"q": self.q, "phi": self.phi, "bins": self.bins}
        labels |= {"g2_groups": self.g2_groups}
        if self.g2_groups is None:
            labels["g2_parts"] = self._part_curves()
        errors = self.g2_err
        if self.g2_groups is not None and len(self.g2_groups) >= _LEAST_GROUPS:
            # They are larger than `g2_err` at delays with few pairs, where the ratio of a pixel
            # varies little, because its own mean divides it.
            errors = self.g2_groups.std(0, ddof=1) / math.sqrt(len(self.g2_groups))
            errors = np.where(np.isfinite(errors), errors, self.g2_err)
        return fit_g2(self.tau, self.g2, errors, model=model, **{**labels, **options})

    def _part_curves(self) -> NDArray[np.float64] | None:
        """Return g2 of the parts at all delays [K, n_tau, n_bins], NaN at those they do not have.

        Together the K parts have fewer pairs of long delays than the run, and more noise: their
        distances from their mean are scaled to the number of pairs of the run.
        """
        if len(self.parts) < 2:
            return None
        curves = np.full((len(self.parts), *self.g2.shape), np.nan)
        pairs = np.zeros((len(self.parts), len(self.delay)))
        for k, part in enumerate(self.parts):
            at = np.searchsorted(self.delay, part.delay)
            curves[k, at], pairs[k, at] = part.g2, part.n_pairs
        return _scaled_parts(curves, pairs[:, :, None], self.n_pairs[:, None])

    def to_dict(self) -> dict[str, Any]:
        """Return all but the map and the overview as lists and Python numbers, for `json`."""
        names = ["delay", "tau", "bins", "g2", "g2_err", "q", "phi", "n_pixels", "n_pairs"]
        arrays = {name: getattr(self, name) for name in names}
        return {
            **{name: None if x is None else x.tolist() for name, x in arrays.items()},
            "n_frames": self.n_frames,
            "frame_time": self.frame_time,
            "config": dict(self.config),
            "parts": [part.to_dict() for part in self.parts],
            "warnings": list(self.warnings),
        }

    def __repr__(self) -> str:
        delays = f"{len(self.delay)} delays"
        if len(self.delay):
            unit, last = ("frames", self.delay[-1]) if self.tau is None else ("s", self.tau[-1])
            delays += f" to {last:.6g} {unit}"
        parts = f", {len(self.parts)} parts" if self.parts else ""
        return (
            f"MultiTauResult({len(self.bins)} bins of {self.n_pixels.sum()} pixels, {delays}, "
            f"{self.n_frames} frames{parts})"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class TwoTimeResult(BinResult):
    """Two-time correlations of each dynamic bin.

    Attributes:
      c2: [n_bins, N, N] with form "full", NaN in rows and columns of bad frames and of frames
        without counts in the bin; [n_bins, n, n] with ("t1t2", n); [n_bins, n_age, n_lag] with
        ("age-lag", ...), NaN in cells without pairs.
      g2: [N, n_bins] the mean of each diagonal of the full matrix without its NaN, from lag 0.
      g2_parts: [5, N // 5, n_bins] the same for five equal parts in time.
      bins: [n_bins] the dynamic bins, from 1.
      t1: edges of c2's first axis in frames (ages with "age-lag"); [n + 1].
      t2: edges of its second axis in frames (lags with "age-lag").
      q, phi, n_pixels, n_frames, frame_time, qmap, overview, config: see `MultiTauResult`.
      n_pairs: [N, n_bins] the number of pairs of good frames with counts in the bin, over which
        each value of `g2` is the mean.
      n_pairs_parts: [5, N // 5, n_bins] the same for `g2_parts`.
      n_empty: [n_bins] the number of good frames without counts in the bin.
      c2_pairs: of the shape of c2, the number of pairs of each cell, as in `n_pairs`; None with
        form "full".
      warnings: see `MultiTauResult`.
      The numbers of pairs and of frames are None if the file does not store them.
    """

    c2: NDArray[Any]
    g2: NDArray[np.float64]
    g2_parts: NDArray[np.float64]
    t1: NDArray[np.float64]
    t2: NDArray[np.float64]
    n_pairs: NDArray[np.int64] | None = None
    n_pairs_parts: NDArray[np.int64] | None = None
    n_empty: NDArray[np.int64] | None = None
    c2_pairs: NDArray[np.int64] | None = None

    @property
    def delay(self) -> NDArray[np.int64]:
        """[N] the lags of `g2`, in frames."""
        return np.arange(self.n_frames)

    @property
    def tau(self) -> NDArray[np.float64] | None:
        """[N] the lags of `g2` in s; None if the time between frames is unknown."""
        step = self.frame_time
        return None if step is None else (self.delay * step).astype(np.float64)

    def fit_g2(self, model: Any = "exponential", **options: Any) -> G2Fit:
        """Fit `g2` of all bins, see `jaxkern.xpcs.fit_g2`.

        Lags are averaged over bins with a ratio of about 1.15, from lag 1, and weighted by their
        numbers of pairs. Errors come from a jackknife over the five parts in time of `g2_parts`.

        Args:
          model: "exponential", "stretched", "double", "shear-gaussian", "shear-sinc" or a function.
          **options: share, bounds, loss and others of `jaxkern.xpcs.fit_g2`.

        Raises:
          ValueError: the time between frames is unknown, fewer than two parts have pairs of frames,
            or as `jaxkern.xpcs.fit_g2`.

        Example:
          >>> import jaxkern as jk
          >>> frames = jk.xpcs.simulate_frames([0.05], n_frames=500, pixels=300)
          >>> r = jk.xpcs.twotime(frames, frames.qmap, frame_time=1e-3)
          >>> fit = r.fit_g2()
          >>> bool(abs(fit.params["rate"][0] - 50) < 4 * fit.errors["rate"][0])
          True
        """
        if self.frame_time is None:
            raise ValueError(_NO_RATES.format("twotime"))
        n = len(self.g2)
        edges = np.unique(np.geomspace(1, n, 2 + int(np.log(n) / np.log(1.15))).astype(int))

        def averages(g2: Any, pairs: Any, edges: Any) -> tuple[Any, Any]:
            total = np.add.reduceat(pairs, edges[:-1], axis=-2)
            weighted = np.where(pairs > 0, g2, 0.0) * pairs
            with np.errstate(invalid="ignore"):
                return np.add.reduceat(weighted, edges[:-1], axis=-2) / total, total

        def pairs_of(pairs: Any, lags: int, shape: tuple[int, ...]) -> Any:
            full = np.broadcast_to(lags - np.arange(lags)[:, None], shape)
            return (full if pairs is None else pairs).astype(np.float64)

        pairs = pairs_of(self.n_pairs, n, self.g2.shape)
        g2, total = averages(self.g2, pairs, edges)
        shape = self.g2_parts.shape
        short = edges[edges <= shape[1]]
        curves = np.full((shape[0], *g2.shape), np.nan)
        counts = np.zeros(curves.shape)
        at = slice(0, len(short) - 1)
        parts = pairs_of(self.n_pairs_parts, shape[1], shape)[:, : max(short, default=0)]
        if len(short) > 1:
            curves[:, at], counts[:, at] = averages(self.g2_parts[:, : short[-1]], parts, short)
        used = (counts > 0).any((1, 2))  # not parts without good frames
        if used.sum() < 2:
            raise ValueError(
                f"fit_g2: expected pairs of frames in 2 or more of the {len(counts)} parts of the "
                f"run, got {int(used.sum())} of {n} frames"
            )
        curves, counts = curves[used], counts[used]
        lags, widths = (edges[:-1] + edges[1:] - 1) / 2, np.diff(edges)[:, None]
        labels = {"q": self.q, "phi": self.phi, "bins": self.bins}
        labels["g2_parts"] = parts = _scaled_parts(curves, counts, total)
        # The noise of a lag has the variance noise / pairs; parts of the run determine its mean.
        noise = parts[:, at].var(0, ddof=1) / len(parts) * (total / widths)[at]
        known = np.isfinite(noise)  # not lags without pairs in some part
        with np.errstate(invalid="ignore"):
            noise = np.where(known, noise, 0.0).sum(0) / known.sum(0)
        errors = np.sqrt(noise * widths / np.maximum(total, 1e-9 * widths))
        return fit_g2(lags * self.frame_time, g2, errors, model=model, **{**labels, **options})

    def fit_data(self, q: float | None = None, tolerance: float = 0.1) -> TwoTimeFitData:
        """Return the matrices of one ring of q, as arguments of `jaxkern.xpcs.fit`.

        Args:
          q: in 1/Angstrom; selects the nearest ring. None if all bins have the same q.
          tolerance: the largest relative difference between `q` and the ring.

        Raises:
          ValueError: a form that cannot be fitted, an unknown time between frames, or a q that no
            bin has.

        Example:
          >>> import jaxkern as jk, numpy as np
          >>> frames = np.random.default_rng(0).poisson(2.0, (50, 4, 6)).astype(np.uint8)
          >>> bins = np.repeat([[1, 2]], 4, axis=0).repeat(3, axis=1)
          >>> qmap = jk.xpcs.QMap(bins, q=[0.005, 0.005], phi=[0.0, 90.0])
          >>> ring = jk.xpcs.twotime(frames, qmap, frame_time=0.1).fit_data(0.005)
          >>> ring.data.shape, ring.phi.tolist(), ring.dt
          ((2, 50, 50), [0.0, 90.0], 0.1)
          >>> geometry = jk.xpcs.Geometry(ring.q, gap=None, dt=ring.dt, t=ring.t, phi=ring.phi)
        """
        if self.config["form"] == "full":
            step = 1.0
        elif self.config["form"][0] == "t1t2":
            step = float(self.t1[1] - self.t1[0])
        else:
            raise ValueError(f'form: expected "full" or ("t1t2", n), got {self.config["form"]!r}')
        if self.frame_time is None:
            raise ValueError("frame_time: expected the time between frames in s, got None")
        if self.q is None:
            raise ValueError("qmap.q: expected [n_dynamic] in 1/Angstrom, got None")
        value = self.q[0] if q is None else q
        ring = self.q[np.argmin(np.abs(self.q - value))]
        if abs(ring - value) > tolerance * abs(value) or (q is None and np.any(self.q != ring)):
            known = ", ".join(f"{x:.6g}" for x in np.unique(self.q))
            raise ValueError(f"q: expected one of {known} (tolerance {tolerance:.3g}), got {q!r}")
        indices = np.flatnonzero(np.abs(self.q - ring) <= 1e-6 * abs(ring))
        phi = np.zeros(len(indices)) if self.phi is None else self.phi[indices]
        dt = step * self.frame_time
        t = np.arange(self.c2.shape[1]).astype(np.float64) * dt
        return TwoTimeFitData(np.asarray(self.c2[indices]), float(ring), phi, t, dt)


def _scaled_parts(curves: Any, pairs: Any, all_pairs: Any) -> NDArray[np.float64]:
    """Scale the distances of K curves from their mean to the noise of all pairs of the run."""
    scale = np.sqrt(len(curves) * pairs / np.maximum(all_pairs, 1))
    mean = curves.mean(0)
    return np.asarray(mean + (curves - mean) * scale)


class TwoTimeFitData(NamedTuple):
    """Data of one ring for `jaxkern.xpcs.fit` and its `Geometry`.

    Args:
      data: [n_phi, n, n] the matrices.
      q: in 1/Angstrom.
      phi: [n_phi] in degrees; zeros if unknown.
      t: [n] times in s from the first frame.
      dt: time between them in s.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> frames = np.random.default_rng(0).poisson(2.0, (40, 4, 4)).astype("u1")
      >>> qmap = jk.xpcs.QMap(np.ones((4, 4), int), q=[0.01])
      >>> ring = jk.xpcs.twotime(frames, qmap, frame_time=0.1).fit_data(q=0.01)
      >>> ring.data.shape, ring.q, ring.dt
      ((1, 40, 40), 0.01, 0.1)
    """

    data: NDArray[Any]
    q: float
    phi: NDArray[np.float64]
    t: NDArray[np.float64]
    dt: float


#: largest number of delays per level in the kernels
MAX_DELAYS = 64
#: largest number of groups of pixels
MAX_GROUPS = 1000


def check_groups(groups: int) -> int:
    """Return a number of groups of pixels: 0 for none, or at least 2."""
    if check_integer("groups", groups, 0, MAX_GROUPS) == 1:
        raise ValueError("groups: expected 0 or at least 2 groups of pixels, got 1; pass 32")
    return groups


def multitau_delays(n_frames: int, dpl: int = 4) -> NDArray[np.int64]:
    """Return the multi-tau delays of `n_frames` frames, in frames.

    Level 0 has the delays 1 .. 2 dpl, level L >= 1 has (dpl + 1 .. 2 dpl) 2^L. The list ends before
    the first delay that is not less than (n_frames // 2^L) 2^L.

    Example:
      >>> import jaxkern as jk
      >>> jk.xpcs.multitau_delays(30).tolist()
      [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24]
    """
    check_integer("n_frames", n_frames, 0)
    check_integer("dpl", dpl, 1)
    return np.array([t << level for level, t in _levels(n_frames, dpl)], np.int64)


def _levels(n_frames: int, dpl: int) -> Iterator[tuple[int, int]]:
    """Yield the level of each delay, and the delay in sums of that level."""
    level = 0
    while True:
        for t in range(dpl + 1 if level else 1, 2 * dpl + 1):
            if t >= n_frames >> level:
                return
            yield level, t
        level += 1


def good_pair_numbers(good: NDArray[np.uint32], dpl: int) -> NDArray[np.int64]:
    """Return the number of pairs with c c' > 0 at each delay; c is `good` [N] at level 0."""
    pairs = []
    c, level = good.astype(np.int64), 0
    while len(c):
        for t in range(dpl + 1 if level else 1, min(2 * dpl, len(c) - 1) + 1):
            pairs.append(int(np.count_nonzero(c[:-t] * c[t:])))
        full = len(c) // 2 * 2
        c, level = c[0:full:2] + c[1:full:2], level + 1
    return np.array(pairs, np.int64)


@dataclass(frozen=True, eq=False)
class BinSums:
    """Sums over pixels at each delay, from which g2 and its errors follow.

    With s a sum of counts and c the number of good frames in it, a pixel has G = sum s s',
    IP = sum s c', IF = sum c s' and W = sum c c' at each delay. Its ratio is G W / (IP IF), or 0 if
    it has no counts. For integer counts, sums are exact integers, rounded to float64 once.
    """

    weight: NDArray[np.float64]  # [n_tau] W; 0 at delays without pairs
    sums: NDArray[np.float64]  # [3, n_tau, n_static] G, IP and IF over the pixels of static bins
    mean: NDArray[np.float64]  # [n_tau, n_dynamic] mean ratio of a dynamic bin's pixels
    squares: NDArray[np.float64]  # [n_tau, n_dynamic] sum of squared distances from that mean
    pixels: NDArray[np.int64]  # [n_dynamic] number of pixels
    carried: Any = None  # unrounded sums to which further pixels can be added


def g2_of_sums(
    sums: BinSums, qmap: QMap, bins: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return g2 and its standard errors [n_tau, n_bins]; NaN where they have no pixels or pairs."""
    # Static bins in the order of dynamic bins: bin b has edges[b] .. edges[b + 1] - 1; empty
    # static bins are in bin 0.
    order = np.argsort(qmap.dynamic_of_static, kind="stable")
    edges = np.searchsorted(qmap.dynamic_of_static[order], np.arange(qmap.n_dynamic + 2))
    ratios = _static_ratios(sums.sums, sums.weight, qmap.pixels_of_static)
    ratios = ratios[:, order]
    g2 = np.full((len(sums.weight), len(bins)), np.nan)
    error = g2.copy()
    for column, number in enumerate(bins):
        pixels = int(sums.pixels[number - 1])
        if not pixels:
            continue
        bin_ratios = ratios[:, edges[number] : edges[number + 1]]
        # fsum rounds once, so that the order of the static bins does not matter.
        g2[:, column] = [math.fsum(row) / len(row) for row in bin_ratios.tolist()]
        if pixels > 1:
            error[:, column] = np.sqrt(sums.squares[:, number - 1] / (pixels - 1) / pixels)
    empty = sums.weight == 0
    g2[empty] = error[empty] = np.nan
    return g2, error


def _static_ratios(
    sums: NDArray[np.float64], weight: NDArray[np.float64], pixels: NDArray[Any]
) -> NDArray[np.float64]:
    """Return <G> / (<IP> <IF>) [n_tau, n_static] from sums over pixels; 0 without counts."""
    G, IP, IF = sums
    denominator = IP * IF
    numerator = G * (weight[:, None] * pixels)
    ratios = np.zeros(denominator.shape)
    with np.errstate(invalid="ignore"):  # infinite counts give NaN
        np.divide(numerator, denominator, out=ratios, where=denominator != 0)
    return ratios


def combine_groups(sums: BinSums, groups: PixelGroups, n_static: int) -> BinSums:
    """Add the sums of the parts of static bins."""
    total = np.zeros((*sums.sums.shape[:2], n_static))
    for k in range(groups.n):
        part = np.flatnonzero(groups.group == k)  # at most one of each static bin
        total[:, :, groups.static[part]] += sums.sums[:, :, part]
    return replace(sums, sums=total)


def g2_of_groups(
    parts: BinSums, total: BinSums, groups: PixelGroups, qmap: QMap, bins: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return g2 of the groups of pixels [n, n_tau, n_bins] from sums of parts of static bins.

    They are the jackknife's pseudo-values n g2 - (n - 1) (g2 without the group), because the ratios
    of the few pixels of one group would be biased; NaN for bins with fewer pixels than groups.
    """
    n, pixels, parents = groups.n, qmap.pixels_of_static, qmap.dynamic_of_static
    ratios = _static_ratios(total.sums, total.weight, pixels)
    static_bins = np.maximum(np.bincount(parents, minlength=qmap.n_dynamic + 1), 1)
    summed = np.zeros((qmap.n_dynamic + 1, len(total.weight)))
    np.add.at(summed, parents, ratios.T)
    values = np.empty((n, len(total.weight), len(bins)))
    for k in range(n):
        part = np.flatnonzero(groups.group == k)
        at = groups.static[part]
        rest = pixels[at] - groups.pixels[part]
        left = total.sums[:, :, at] - parts.sums[:, :, part]
        # A static bin that lies in the group alone is left out of the mean.
        remaining = np.where(rest > 0, _static_ratios(left, total.weight, rest), 0.0)
        without = summed.copy()
        np.add.at(without, parents[at], (remaining - ratios[:, at]).T)
        lost = np.bincount(parents[at[rest == 0]], minlength=len(summed))
        without /= np.maximum(static_bins - lost, 1)[:, None]
        pseudo = n * summed / static_bins[:, None] - (n - 1) * without
        values[k] = pseudo[bins].T
    values[:, total.weight == 0] = np.nan
    values[:, :, ~groups.known[bins - 1]] = np.nan
    return values


def g2_result(
    sums: BinSums,
    selection: FrameSelection,
    labels: BinLabels,
    frame_time: float | None,
    config: Mapping[str, Any],
) -> MultiTauResult:
    """Return the result for a selection; `config` has arguments that are not the selection's."""
    dpl = config["dpl"]
    delay = multitau_delays(selection.n, dpl)
    n_pairs = np.array([(selection.n >> level) - t for level, t in _levels(selection.n, dpl)])
    if len(selection.bad_selected):
        n_pairs = good_pair_numbers(selection.good_counts(), dpl)
    step = selection.time_step(frame_time)
    g2, g2_err = g2_of_sums(sums, labels.qmap, labels.bins)
    tau = None if step is None else (delay * step).astype(np.float64)
    fields = labels.fields(selection, frame_time, config)
    return MultiTauResult(delay=delay, tau=tau, g2=g2, g2_err=g2_err, n_pairs=n_pairs, **fields)
