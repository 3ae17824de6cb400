"""Values of an image chain, a multi-tau correlation and a fit, to compare two CPUs.

python .ci/arm_values.py FILE            # computes and saves the values
python .ci/arm_values.py FILE EXPECTED   # compares those of two files
"""

from __future__ import annotations

import sys

import numpy as np


def values() -> dict[str, np.ndarray]:
    """Return values by name; they must be equal unless it ends in ``~`` and a tolerance."""
    import jaxkern as jk

    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (4, 80, 96, 3), np.uint8)
    crop = [jk.image.RandomResizedCrop(64), jk.image.RandomHorizontalFlip()]
    normalize = jk.image.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    levels = jk.image.Compose(crop)
    keys = jk.random.record_keys(0, 0, np.arange(4))
    params = levels.sample(keys, (80, 96))
    out = {f"params {i} {k}~1e-6": v for i, p in enumerate(params) for k, v in p.items()}
    out["chain, u8"] = levels.apply(images, params)
    out["chain, f32~1e-6"] = jk.image.Compose([*crop, normalize]).apply(images, (*params, {}))
    frames = draw.poisson(0.5, (200, 24, 24)).astype(np.uint16)
    bins = 1 + np.arange(24 * 24, dtype=np.int32).reshape(24, 24) % 3
    g2 = jk.xpcs.multitau(frames, jk.xpcs.QMap(bins))
    out |= {"multi-tau, delays": g2.delay, "multi-tau, g2": g2.g2}

    t = 0.1 * np.arange(60)
    geometry = jk.xpcs.Geometry(q=0.0054, gap=2e6, dt=0.1, t=t, phi=[-40.0, 0.0, 40.0])
    model = jk.xpcs.LaminarFlow(geometry)
    truth = {"D0": 3e4, "alpha": 0.0, "D_offset": 0.0, "gamma_dot_t0": 5e-4, "beta": 0.0}
    matrices = np.asarray(jk.xpcs.g2(model, [*truth.values(), 0.0, 3.0], 0.3, 1.0))
    noise = draw.normal(0, 0.01, matrices.shape)
    matrices = matrices + noise + noise.swapaxes(1, 2)
    fit = jk.xpcs.fit(model, matrices, p0=truth, hold=["D_offset", "gamma_dot_t_offset"])
    free = fit.perr > 0
    scaled = fit.popt[free] / fit.perr[free]
    return out | {"fit, parameters in standard errors~1e-8": scaled, "fit, chi2~1e-12": fit.chi2}


def main() -> None:
    if len(sys.argv) == 2:
        np.savez(sys.argv[1], **values())
        return
    ours, theirs = (np.load(path) for path in sys.argv[1:])
    assert ours.files == theirs.files
    for name in ours.files:
        a, b = ours[name], theirs[name]
        assert (a.dtype, a.shape) == (b.dtype, b.shape), name
        limit = float(name.split("~")[1]) if "~" in name else 0.0
        scale = np.abs(b.astype(float)).max()
        difference = np.abs(a.astype(float) - b.astype(float)).max() / max(scale, 1e-300)
        print(
            f"{name.split('~')[0]:40} largest relative difference {difference:.2g}, limit {limit:g}"
        )
        assert np.isfinite(a).all(), name
        assert difference <= limit, name


if __name__ == "__main__":
    main()
