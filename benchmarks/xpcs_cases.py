"""One fit, which xpcs_fits.py runs in a new process; the result is printed as JSON.

    python -P benchmarks/xpcs_cases.py ours|memory|nlsq PROBLEM.npz

Times are those of the monotonic clock, which processes share, so that the parent process can
subtract the time at which it started this one.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

HUGE = 1e6  # sigma of points that shall not count, for a solver that knows no such points


def ours(path: str) -> dict[str, Any]:
    import jax

    imported = time.monotonic()
    import numpy as np
    import xpcs_model as model

    import jaxkern as jk
    from jaxkern.core.memory import status_bytes

    jax.devices()
    before = status_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
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
        errors=jk.xpcs.ErrorOptions("independent", absolute_sigma=True),  # as the peers compute
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
        "strategy": result.strategy,
        "compile": result.timings.compile,
        "compute": result.timings.compute,
        "total": result.timings.total,
        "peak_beyond_start": status_bytes("VmHWM") - before,
        "data_bytes": data.nbytes,
    }


def memory(path: str) -> dict[str, Any]:
    """The largest RssAnon all through the same fit, beyond that of a process with its libraries."""
    import jax
    import scipy.optimize  # noqa: F401

    import jaxkern  # noqa: F401
    from jaxkern.core.memory import anonymous_bytes

    jax.devices()
    before, largest, done = anonymous_bytes(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            largest[0] = max(largest[0], anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        found = ours(path)
    finally:
        done.set()
        watcher.join()
    return {**found, "anonymous_beyond_start": largest[0] - before}


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
    found = curve_fit(
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
        "popt": np.asarray(found.popt).tolist(),
        "perr": np.sqrt(np.diag(found.pcov)).tolist(),
        "nfev": int(found.nfev),
    }


if __name__ == "__main__":
    # -P leaves this folder off the path.
    sys.path.append(str(Path(__file__).parent))
    print(json.dumps({"ours": ours, "memory": memory, "nlsq": nlsq}[sys.argv[1]](sys.argv[2])))
