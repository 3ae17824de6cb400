"""Fits of one problem, which xpcs_fits.py runs in new processes.

Times are those of the monotonic clock, which processes share, so that the parent process can
subtract the time at which it started this one. The module imports little for the same reason.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

HUGE = 1e6  # sigma of points without weight, for a solver that cannot exclude points


def ours(path: str) -> dict[str, Any]:
    import jax

    imported = time.monotonic()
    import numpy as np
    import xpcs_model as model

    import jaxkern as jk
    from jaxkern.core.memory import status_bytes

    jax.devices()
    before = status_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    with np.load(path) as problem:
        data, start, lower, upper = (problem[k] for k in ("data", "start", "lower", "upper"))
        sigma = float(problem["sigma"])
    loaded = time.monotonic()
    n = len(data)
    result = jk.xpcs.fit(
        jk.xpcs.LaminarFlow(model.geometry(n, data.shape[1])),
        data,
        sigma,
        start[2 * n :],
        start[:n],
        start[n : 2 * n],
        bounds=(lower, upper),
        errors=jk.xpcs.ErrorOptions("independent", absolute_sigma=True),  # as nlsq computes them
        progress=False,
    )
    return {
        "jax_imported": imported,
        "loaded": loaded,
        "result": time.monotonic(),
        "popt": result.popt.tolist(),
        "perr": result.perr.tolist(),
        "success": result.success,
        "nfev": result.nfev,
        "compute": result.timings.compute,
        "peak_beyond_start": status_bytes("VmHWM") - before,
        "data_bytes": data.nbytes,
    }


def memory(path: str) -> dict[str, Any]:
    """Return also the largest private memory during the fit, beyond that of imported libraries."""
    import harness
    import jax
    import scipy.optimize  # noqa: F401

    jax.devices()
    with harness.sampled_memory() as samples:
        result = ours(path)
    return {**result, "anonymous_beyond_start": max(samples) - samples[0]}


def nlsq(path: str) -> dict[str, Any]:
    import jax

    imported = time.monotonic()
    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp
    import numpy as np
    import xpcs_model as model
    from nlsq import curve_fit

    with np.load(path) as problem:
        data, start, lower, upper = (problem[k] for k in ("data", "start", "lower", "upper"))
        noise = float(problem["sigma"])
    loaded = time.monotonic()
    n, frames, _ = data.shape
    t, phi = jnp.asarray(model.DT * np.arange(frames)), jnp.asarray(model.angles_of(n))

    @jax.jit
    def function(x: Any, *parameters: Any) -> Any:
        return model.g2(jnp.stack(parameters), t, phi).reshape(-1)

    sigma = np.where(np.eye(frames, dtype=bool), HUGE, noise)
    result = curve_fit(
        function,
        np.arange(data.size, dtype=float),
        data.reshape(-1),
        p0=start,
        sigma=np.broadcast_to(sigma, data.shape).reshape(-1),
        absolute_sigma=True,
        bounds=(lower, upper),
        x_scale="jac",
    )
    return {
        "jax_imported": imported,
        "loaded": loaded,
        "result": time.monotonic(),
        "popt": np.asarray(result.popt).tolist(),
        "perr": np.sqrt(np.diag(result.pcov)).tolist(),
        "nfev": int(result.nfev),
    }
