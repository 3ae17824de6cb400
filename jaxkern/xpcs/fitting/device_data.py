"""The data of a fit on devices: a `jax.Array`, sharded or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.fitting.fit_data import FitData, WholeFirst, sample_bands
from jaxkern.xpcs.fitting.options import StreamingOptions
from jaxkern.xpcs.fitting.passes import BadBlocks, Pass, PassContext, WholePass
from jaxkern.xpcs.fitting.starting import RowSample, sample_rows
from jaxkern.xpcs.fitting.strategy import Strategy
from jaxkern.xpcs.model.ops import DATA_DTYPES

Array = NDArray[np.float64]


class DeviceData(FitData):
    """A ``jax.Array``, on one device or sharded over several, in one process or more."""

    def __init__(
        self, data: jax.Array, frames: NDArray[np.bool_], step_zero: tuple[float, float]
    ) -> None:
        super().__init__(frames)
        if data.ndim != 3:
            raise ValueError(f"data has the shape {data.shape}; wanted [n_phi, n, n]")
        if data.dtype not in DATA_DTYPES:
            data = data.astype(jnp.float64)
        n_phi, n, _ = data.shape
        self.shape = (n_phi, n, n)
        self.dtype = data.dtype
        self.step_zero = step_zero
        self.strategy = Strategy.STANDARD if data.size < 10**6 else Strategy.LARGE
        self.chunk_rows = n
        self._data = data
        self._numbers: NDArray[np.bool_] | None = None
        if len(data.sharding.device_set) > 1:
            spec: Any = getattr(data.sharding, "spec", None)
            if spec is None or (len(spec) > 2 and spec[2] is not None):
                raise ValueError(
                    f"data has the sharding {data.sharding}; wanted a NamedSharding over angles or "
                    "rows, such as P('devices') or P(None, 'devices')"
                )
            # With Auto axes, where a gather of rows needs no words about its result's sharding.
            given: Any = data.sharding
            mesh = given.mesh
            kinds = (jax.sharding.AxisType.Auto,) * len(mesh.axis_names)
            mesh = jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)
            self.sharding = jax.NamedSharding(mesh, spec)
            self._data = jax.device_put(data, self.sharding)
        self.sample = self._sample()

    def _sample(self) -> RowSample:
        rows = sample_rows(self.frames, sample_bands(self.shape))
        taken = self._replicated(lambda d: d[:, rows].astype(jnp.float64))
        step, zero = self.step_zero
        return RowSample(rows, zero + step * taken, self.frames)

    def _replicated(self, function: Callable[[Any], Any]) -> NDArray[Any]:
        """function(data) on the host of every process."""
        return np.asarray(jax.jit(function, out_shardings=self._on_every_host())(self._data))

    def _on_every_host(self) -> Any:
        """The sharding of a result that every process reads."""
        return None if self.sharding is None else jax.NamedSharding(self.sharding.mesh, jax.P())

    def _find_mirrored(self) -> NDArray[np.bool_]:
        def equal(d: Any) -> Any:
            turned = jnp.swapaxes(d, 1, 2)
            same = d == turned
            if jnp.issubdtype(d.dtype, jnp.floating):
                same |= jnp.isnan(d) & jnp.isnan(turned)
            return same.all((1, 2))

        return np.array(self._replicated(equal))

    def _numbers_in(self, frame: int) -> NDArray[np.bool_]:
        if self._numbers is None:
            away = self.frames & ~np.eye(self.shape[1], dtype=bool)
            self._numbers = self._replicated(lambda d: (jnp.isfinite(d) & away).any(2))
        return np.asarray(self._numbers[:, frame])

    def each_angle(self, rows: NDArray[np.intp]) -> Iterator[Array]:
        step, zero = self.step_zero
        taken = jax.jit(
            lambda d, angle: d[angle][rows].astype(jnp.float64), out_shardings=self._on_every_host()
        )
        for angle in range(self.shape[0]):
            yield zero + step * np.asarray(taken(self._data, angle))

    def find_largest(self, centers: Array) -> tuple[int, int, int, float] | None:
        step, zero = self.step_zero
        searched = np.isfinite(centers)
        counts = self.frames[:, None] & self.frames & ~np.eye(self.shape[1], dtype=bool)

        def furthest(d: Any) -> Any:
            """[n_phi, n, 2]: column and value of what is furthest off in each row."""
            value = zero + step * d.astype(jnp.float64)
            far = jnp.abs(value - jnp.where(searched, centers, 0.0)[:, None, None])
            far = jnp.where(counts & jnp.isfinite(far), far, -1.0)
            column = far.argmax(2, keepdims=True)
            return jnp.concatenate([column, jnp.take_along_axis(value, column, 2)], 2)

        columns, found = np.moveaxis(self._replicated(furthest), 2, 0)
        far = np.abs(found - centers[:, None])
        far[~searched] = far[:, ~self.frames] = -1.0
        angle, row = np.unravel_index(int(far.argmax()), far.shape)
        return int(angle), int(row), int(columns[angle, row]), float(found[angle, row])

    def way(
        self, context: PassContext, bad: BadBlocks, streaming: StreamingOptions, **told: Any
    ) -> Pass:
        whole = WholePass(context, self._data)
        self.ways.append(whole)
        return WholeFirst(whole, bad)
