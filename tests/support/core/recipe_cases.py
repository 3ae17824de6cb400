"""The ops that run through the checks of the recipe, each with samples; see ``_CASES``."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

import jaxkern as jk
from jaxkern.image import jpeg, ops
from jaxkern.image.chain.plan import Layout
from jaxkern.image.parameters import per_image
from jaxkern.image.program.program import program_operands
from jaxkern.testing.check import OpCheck, check_names
from jaxkern.xpcs import ops as xpcs
from jaxkern.xpcs.correlators.multitau_state import multitau_update_op
from support.image.draws import sample

SCALE = jk.Op("test.scale", version=1, abstract=lambda x, s: x, impl=lambda x, s: x * s)


def scale(dtype: Any) -> Callable[[], dict[str, Any]]:
    """A small op of the tests' own library: x [n] times s []."""

    def make() -> dict[str, Any]:
        random = np.random.default_rng(1)
        samples = [
            (
                jnp.asarray(random.integers(-9, 9, 6), dtype),
                jnp.asarray(random.integers(-9, 9), dtype),
            )
            for _ in range(8)
        ]
        return {"op": SCALE, "samples": samples}

    return make


def image_chain(dtype: Any, output: Any, **options: Any) -> Callable[[], dict[str, Any]]:
    """Random resized crops with flips, normalizing and erasing, of one image dtype."""

    def make() -> dict[str, Any]:
        aug = jk.image.Compose(
            [
                jk.image.RandomResizedCrop((6, 5), **options),
                jk.image.RandomHorizontalFlip(),
                jk.image.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.4]),
                *([jk.image.RandomErasing(p=0.7)] if dtype == np.uint8 else []),
            ],
            dtype=output,
        )
        images = _images(dtype)
        params = sample(aug, _keys(len(images)), images.shape[1:3])
        return _captured(ops.chain, lambda: aug.apply(images, params))

    return make


def image_chain_ragged() -> dict[str, Any]:
    """Images of different sizes in one buffer; each sample's crop fits in every image."""
    random = np.random.default_rng(2)
    sizes = [(9, 8), (5, 12), (7, 7), (12, 4), (6, 6), (8, 9), (4, 5), (10, 11)]
    # The buffer extends beyond the last image, so that any size fits at any offset.
    images = jk.image.Ragged.from_list(
        [random.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes], buffer_size=2048
    )
    aug = jk.image.Compose([jk.image.RandomResizedCrop(6), jk.image.Normalize([0.5], [0.2])])
    params = sample(aug, _keys(len(sizes)), (4, 4))
    return _captured(ops.ragged_chain, lambda: aug.apply(images, params))


def image_mix(dtype: Any) -> Callable[[], dict[str, Any]]:
    """CutMix boxes and MixUp factors at once."""

    def make() -> dict[str, Any]:
        x, random = _images(dtype), np.random.default_rng(5)
        lam = random.uniform(0, 1, len(x)).astype(np.float32)
        box = random.integers(0, 6, (len(x), 4), dtype=np.int32)
        samples = list(zip(x, x[::-1], lam, box, strict=True))
        return {
            "op": ops.mix,
            "samples": samples,
            "static": {"layout": Layout.NHWC},
            "atol": 5e-2 if dtype == jnp.bfloat16 else 1e-5,
            # The rounding may be to either side.
            "integer_atol": 1 if dtype == np.uint8 else 0,
            "rtol": 2e-2 if dtype == jnp.bfloat16 else 1e-5,
        }

    return make


def image_program(dtype: Any) -> Callable[[], dict[str, Any]]:
    """A table, a sharpening, a gray image; values far from where derivatives jump."""

    def make() -> dict[str, Any]:
        images = _images(dtype)
        if dtype != np.uint8:
            place = jnp.arange(images.size).reshape(images.shape) / images.size
            images = 0.35 + 0.3 * images + 0.01 * place
        transforms = (
            jk.image.RandomInvert(),
            jk.image.RandomAdjustSharpness(1.2),
            jk.image.RandomGrayscale(),
        )
        given = {"apply": jnp.ones(len(images), bool)}
        steps = [step for t in transforms for step in t.program(given, images.shape[1:3])]
        op, values, fixed = program_operands(steps)
        static = {"steps": fixed, "channels": images.shape[-1]}
        run = _captured(
            ops.program, lambda: ops.program(images, op, values, batch_dims=1, **static)
        )
        return {**run, "atol": 2e-4, "rtol": 1e-3}

    return make


def image_noise_and_warps() -> dict[str, Any]:
    """A turn onto a larger image, a perspective, noise, noise in a box, and an elastic warp."""
    random = np.random.default_rng(7)
    inwards = random.integers(0, 3, (8, 4, 2), np.int32) * [[1, 1], [-1, 1], [-1, -1], [1, -1]]
    seeds = random.integers(-(2**31), 2**31, (3, 8, 2)).astype(np.int32)
    box = {"top": 1, "left": np.arange(8) % 3, "height": 2, "width": 3, "erase": True}
    steps: list[tuple[jk.image.Transform, dict[str, Any]]] = [
        (jk.image.RandomRotation((30, 30), expand=True), {"angle": np.float32(30)}),
        (jk.image.RandomPerspective(), {"endpoints": np.int32(_CORNERS + inwards)}),
        (jk.image.GaussianNoise(clip=False), {"seed": seeds[0]}),
        (jk.image.RandomErasing(value="random"), {**box, "seed": seeds[1]}),
        (jk.image.ElasticTransform(4.0, 0.3), {"seed": seeds[2]}),
    ]
    aug = jk.image.Compose([transform for transform, _ in steps])
    images = _images(np.float32)[:, :5, :6]
    return _captured(ops.stages, lambda: aug.apply(images, [given for _, given in steps]))


_CORNERS = np.asarray([[0, 0], [7, 0], [7, 8], [0, 8]])  # of the 9 x 8 pixels after the rotation


def image_stages(dtype: Any) -> Callable[[], dict[str, Any]]:
    """A crop, a table, then a flip of the rounded levels, normalized and erased."""

    def make() -> dict[str, Any]:
        steps: list[tuple[jk.image.Transform, dict[str, Any]]] = [
            (jk.image.RandomCrop((7, 8)), {"top": np.arange(8) % 3, "left": np.arange(8) % 4}),
            (jk.image.RandomInvert(), {"apply": np.arange(8) % 2 > 0}),
            (jk.image.RandomHorizontalFlip(), {"flip": np.arange(8) % 4 > 1}),
            (jk.image.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.4]), {}),
        ]
        if dtype == np.uint8:
            box = {"top": 1, "left": 2, "height": 3, "width": 2, "erase": np.arange(8) > 3}
            steps.append((jk.image.RandomErasing(), box))
        aug = jk.image.Compose([transform for transform, _ in steps])
        params = [given for _, given in steps]
        return _captured(ops.stages, lambda: aug.apply(_images(dtype), params))

    return make


def image_parameters() -> dict[str, Any]:
    """Random numbers of keys, choices from a table, and arithmetic of all operands."""

    def draw(words: Any, x: Any, flag: Any) -> Any:
        key = jax.random.wrap_key_data(words, impl="threefry2x32")[0]
        fraction = jax.random.uniform(key, (1, 3))
        order = jax.random.permutation(jax.random.fold_in(key, 1), 3)[None]
        chosen = jnp.asarray([0.5, -1.0, 2.0])[order]
        return (
            jnp.where(flag[:, None], x * fraction, jnp.sin(x)) + chosen,
            order,
            flag | (x[:, 0] > 0),
        )

    random = np.random.default_rng(4)
    words = jnp.asarray(random.integers(0, 2**32, (8, 2), np.uint32))
    x = jnp.asarray(random.normal(size=(8, 3)), jnp.float32)
    flag = jnp.arange(8) % 3 == 0
    run = functools.partial(per_image.per_image, draw, words, x, flag)
    return _captured(per_image.parameters, run, per_image)


def image_stages_ragged() -> dict[str, Any]:
    """Images of different sizes in one buffer, cut out and inverted."""
    random = np.random.default_rng(2)
    sizes = [(9, 8), (5, 12), (7, 7), (12, 4), (6, 6), (8, 9), (4, 5), (10, 11)]
    images = jk.image.Ragged.from_list(
        [random.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes], buffer_size=2048
    )
    aug = jk.image.Compose([jk.image.RandomCrop(4), jk.image.RandomInvert(), jk.image.Pad(1)])
    place = {"top": np.int32(0), "left": np.int32(0)}
    params = [place, {"apply": np.arange(len(sizes)) % 2 > 0}, {}]
    return _captured(ops.ragged_stages, lambda: aug.apply(images, params))


def decode_jpeg() -> dict[str, Any]:
    """Files of three sizes in one buffer, decoded into a larger canvas.

    A check that combines the offsets of several samples gives zeros.
    """
    random, files = np.random.default_rng(6), []
    for k in range(8):
        pixels = random.integers(0, 256, (4 + k % 3, 5, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", progressive=k % 2 == 1)
        files.append(file.getvalue())
    buffer = jnp.asarray(np.frombuffer(b"".join(files), np.uint8))
    ends = np.cumsum([len(file) for file in files]).astype(np.int32)
    begins = np.concatenate([[0], ends[:-1]]).astype(np.int32)
    samples = [(buffer, *map(jnp.asarray, place)) for place in zip(begins, ends, strict=True)]
    static = {"height": 7, "width": 6, "channels": 3, "mask": True}
    static |= {"max_pixels": 1000, "denominator": 1}
    return {"op": jpeg.decode_jpeg_op, "samples": samples, "static": static}


def two_time(name: str, dtype: Any, shear_power: int = 4) -> Callable[[], dict[str, Any]]:
    """An op of two-time correlations, over angles with different phases."""

    def make() -> dict[str, Any]:
        samples, static = [], {"shear_power": shear_power}
        for k in range(8):
            random, n = np.random.default_rng(k), 19
            A, X = np.cumsum(random.uniform(0.01, 0.1, n)), np.cumsum(random.uniform(0, 0.4, n))
            phases = (A, X, *random.uniform(0.2, 0.8, 1))
            operands = {
                "two_time_g2": (*phases, 1.0 + 0.01 * k),
                "two_time_g2_tangent": (*phases, *random.normal(size=(2, n)), 0.3, -0.2 * k),
                "two_time_g2_cotangent": (*phases, random.normal(size=(n, n))),
                "two_time_residual": (*phases, 1.1, *random.uniform(0.5, 1.5, (2, n, n))),
                "two_time_g2_at": (
                    A,
                    random.uniform(0, 2, (3, n)),
                    *random.uniform(0.5, 1, (2, 3)),
                    random.integers(0, (3, n, n), (40, 3)).astype(np.int32),
                ),
            }[name]
            samples.append(
                tuple(
                    jnp.asarray(x, np.int32 if np.asarray(x).dtype == np.int32 else dtype)
                    for x in operands
                )
            )
        if name == "two_time_residual":
            static["sigma_rank"] = 2
        tolerance = 1e-5 if dtype == np.float64 else 2e-4
        case = {"op": getattr(xpcs, name), "samples": samples, "static": static}
        return {**case, "rtol": tolerance, "atol": tolerance}

    return make


def normal_equations(data: Any, dtype: Any, **options: int) -> Callable[[], dict[str, Any]]:
    """Normal equations with 3 + 2 tangent tables, of one data dtype."""

    def make() -> dict[str, Any]:
        samples, n, rank = [], 19, options.get("sigma_rank", 0)
        static = {"shear_power": 4, "loss": 0, "symmetric": 0, "sigma_rank": 0, **options}
        for k in range(8):
            random = np.random.default_rng(k)
            quantized = data == np.uint16
            values = random.integers(0, 3000, (n, n)) if quantized else random.normal(1, 1, (n, n))
            sigma = random.uniform(2, 3, (n, n) if rank else ())
            reals = (
                np.cumsum(random.uniform(0.01, 0.1, n)),
                np.cumsum(random.uniform(0, 0.4, n)),
                *(random.normal(size=(count, n)) for count in (3, 2)),
                0.4,
                1.1,
                values,
                (1e-3, 0.1) if quantized else (1.0, 0.0),
                sigma,
                random.integers(0, 5, n) > 0,
                0.8,
                0,
                random.normal(size=xpcs.state_size(3, 2)),
            )
            kinds = [dtype] * len(reals)
            kinds[6], kinds[9], kinds[11] = data, np.uint8, np.int32
            samples.append(tuple(jnp.asarray(x, d) for x, d in zip(reals, kinds, strict=True)))
        # Gradients by half-precision data are themselves rounded to half precision.
        tolerance = 1e-2 if data == np.float16 else 1e-5 if dtype == np.float64 else 2e-3
        case = {"op": xpcs.two_time_normal_equations, "samples": samples, "static": static}
        return {**case, "rtol": tolerance, "atol": tolerance}

    return make


def component(name: str, dtype: Any) -> Callable[[], dict[str, Any]]:
    """An op of two components, over angles with different tables."""

    def make() -> dict[str, Any]:
        samples, n = [], 19
        for k in range(8):
            random = np.random.default_rng(k)
            steps = random.uniform(0.01, 0.2, (2, 2, n))
            phases = (random.uniform(-1, 0, (2, n)), *np.cumsum(steps, -1))
            model = (*phases, random.uniform(0.2, 0.8))
            operands = {
                "component_g2": (*model, 1.0 + 0.01 * k),
                "component_g2_tangent": (*model, *random.normal(size=(3, 2, n)), 0.3, -0.2 * k),
                "component_g2_cotangent": (*model, random.normal(size=(n, n))),
                "component_residual": (*model, 1.1, *random.uniform(0.5, 1.5, (2, n, n))),
            }[name]
            samples.append(tuple(jnp.asarray(x, dtype) for x in operands))
        static = {"sigma_rank": 2} if name == "component_residual" else {}
        tolerance = 1e-5 if dtype == np.float64 else 2e-4
        case = {"op": getattr(xpcs, name), "samples": samples, "static": static}
        return {**case, "rtol": tolerance, "atol": tolerance}

    return make


def component_normal_equations(data: Any, **options: int) -> Callable[[], dict[str, Any]]:
    """Normal equations of two components with 3 parameters."""

    def make() -> dict[str, Any]:
        case = normal_equations(data, np.float64, **options)()
        static = {name: value for name, value in case["static"].items() if name != "shear_power"}
        samples = []
        for k, (_, _, _, _, *rest) in enumerate(case["samples"]):
            random, n = np.random.default_rng(100 + k), 19
            steps = random.uniform(0.01, 0.2, (2, 2, n))
            tables = random.uniform(-1, 0, (2, n)), *np.cumsum(steps, -1)
            tangents = random.normal(size=(3, 3, 2, n))
            tangents[1, 0] = 0.0  # the kernel skips tables of zeros
            samples.append((*map(jnp.asarray, (*tables, *tangents)), *rest[:-1], rest[-1][:24]))
        return {**case, "op": xpcs.component_normal_equations, "samples": samples, "static": static}

    return make


def multitau_update(dtype: Any) -> Callable[[], dict[str, Any]]:
    """States of runs of different lengths, with blocks of frames that complete several levels."""

    def make() -> dict[str, Any]:
        samples, dpl = [], 2
        most = {"uint8": 255, "float32": 64, "float64": 64}.get(np.dtype(dtype).name, 10**7)
        # Eighths have exact sums of products, whether a multiply and an add are fused or not.
        scale = 8 if np.dtype(dtype).kind == "f" else 1
        for k in range(8):
            frames = np.random.default_rng(k).integers(0, most, (37, 5), endpoint=True)
            frames = (frames / scale).astype(dtype)
            state = jk.xpcs.multitau_init(5, 64, dtype, dpl)
            for block in np.split(frames[: 3 * k], k or 1):
                state = jk.xpcs.multitau_update(state, block)
            arrays = (state.seen, state.total, state.g, state.head, state.history)
            samples.append((frames[24:], *map(np.asarray, arrays)))
        return {"op": multitau_update_op, "samples": samples, "static": {"dpl": dpl}}

    return make


def _keys(count: int) -> Any:
    return jax.random.split(jax.random.key(3), count)


def _images(dtype: Any) -> Any:
    levels = np.random.default_rng(4).integers(0, 256, (8, 10, 12, 3))
    return jnp.asarray(levels if dtype == np.uint8 else levels / 255, dtype)


def _captured(op: jk.Op, run: Callable[[], Any], module: Any = ops) -> dict[str, Any]:
    """Return the operands and static arguments with which a function calls an op over a batch."""
    seen: list[tuple[Any, Any]] = []

    class Recorder:
        target = op.target

        def __call__(self, *operands: Any, batch_dims: int, **static: Any) -> Any:
            seen.append((operands, static))
            return op(*operands, batch_dims=batch_dims, **static)

    def given() -> Any:
        run()
        return seen[0][0]

    name = next(n for n, value in vars(module).items() if value is op)
    setattr(module, name, Recorder())
    try:
        operands = jax.jit(given)()  # one program, which drops the op's call
    finally:
        setattr(module, name, op)
    static = seen[0][1]
    count = max(x.shape[0] for x in operands)
    samples = [tuple(x[min(i, x.shape[0] - 1)] for x in operands) for i in range(count)]
    # The kernel's fixed point may be off by 2e-4 of the value range, here divided by std.
    return {"op": op, "samples": samples, "static": static, "atol": 2e-3, "rtol": 1e-2}


# Each op runs all checks for one dtype. For its other dtypes it runs those that depend on the
# dtype: that the kernel is called, and one direction of the derivatives. An op without a jvp uses
# that of its reference implementation, which is checked for one dtype, and for images in half
# precision. Placement, nested batches and retraces depend on the rules that all ops share, so they
# are checked for one op of each kind. Export needs two processes, so it is checked for an op of
# images and one with 64 bits (and in tests/testing for an op of another library).
_ALL_ROWS = check_names()
_ROWS = [name for name in _ALL_ROWS if name != "export_and_cache"]
_SHARED = {"mesh_auto", "mesh_explicit", "shard_map", "vmap_axes", "vmap_nested", "control_flow"}
_OP_ROWS = [name for name in _ROWS if name not in {*_SHARED, "donation", "no_retrace"}]
_DTYPE_ROWS = ["eager_and_jit", "one_native_call"]
_FORWARD_ROWS, _REVERSE_ROWS = [*_DTYPE_ROWS, "forward"], [*_DTYPE_ROWS, "reverse"]
_BATCH_ROWS = ["eager_and_jit", "backends", "vmap_mixes", "other_sizes"]
# A build without libjpeg-turbo decodes with Pillow only; JAXKERN_REQUIRE=jpeg makes that a failure.
_HAS_JPEG = jpeg.decode_jpeg_op.target in jk.export_targets()
_CASES: dict[str, tuple[Callable[[], dict[str, Any]], list[str]]] = {
    "scale-f32": (scale(np.float32), _ROWS),
    "scale-f64": (scale(np.float64), _OP_ROWS),
    "scale-i32": (scale(np.int32), _DTYPE_ROWS),
    "image_chain-u8-f32": (image_chain(np.uint8, np.float32), _ALL_ROWS),
    "image_chain-f32-f32": (image_chain(np.float32, np.float32, antialias=True), _REVERSE_ROWS),
    "image_chain-bf16-bf16": (
        image_chain(jnp.bfloat16, jnp.bfloat16, interpolation="nearest"),
        _FORWARD_ROWS,
    ),
    "image_chain-f16-f16": (image_chain(np.float16, np.float16), _DTYPE_ROWS),
    "image_chain_ragged-u8": (image_chain_ragged, _OP_ROWS),
    "image_decode_jpeg-u8": (decode_jpeg, _OP_ROWS if _HAS_JPEG else ["eager_and_jit"]),
    "image_mix-f32": (image_mix(np.float32), _OP_ROWS),
    "image_mix-u8": (image_mix(np.uint8), _FORWARD_ROWS),
    "image_mix-bf16": (image_mix(jnp.bfloat16), _REVERSE_ROWS),
    "image_parameters": (image_parameters, _OP_ROWS),
    "image_program-f32": (image_program(np.float32), _OP_ROWS),
    "image_program-u8": (image_program(np.uint8), _DTYPE_ROWS),
    "image_stages-f32": (image_stages(np.float32), ["reverse"]),
    "image_stages-noise-f32": (image_noise_and_warps, ["eager_and_jit", "vmap_mixes"]),
    "image_stages-u8-f32": (image_stages(np.uint8), _BATCH_ROWS),
    "image_stages_ragged-u8": (image_stages_ragged, _DTYPE_ROWS),
    **{
        f"{name}-{np.dtype(dtype).name.replace('float', 'f')}": (two_time(name, dtype), rows)
        for name, f64, f32 in (
            ("two_time_g2", _ROWS, _FORWARD_ROWS),
            ("two_time_g2_tangent", _OP_ROWS, _REVERSE_ROWS),
            ("two_time_g2_cotangent", _OP_ROWS, _FORWARD_ROWS),
            ("two_time_residual", _OP_ROWS, _REVERSE_ROWS),
            ("two_time_g2_at", _OP_ROWS, _FORWARD_ROWS),
        )
        for dtype, rows in ((np.float64, f64), (np.float32, f32))
    },
    "component_g2-f64": (component("component_g2", np.float64), _OP_ROWS),
    "component_g2_tangent-f64": (component("component_g2_tangent", np.float64), _OP_ROWS),
    "component_g2_cotangent-f64": (component("component_g2_cotangent", np.float64), _OP_ROWS),
    "component_residual-f32": (component("component_residual", np.float32), _REVERSE_ROWS),
    "component_normal_equations-f64": (
        component_normal_equations(np.float64, loss=1, symmetric=2),
        _ALL_ROWS,
    ),
    "component_normal_equations-sigma-f32-in-f64": (
        component_normal_equations(np.float32, sigma_rank=2),
        _DTYPE_ROWS,
    ),
    "multitau_update-u8": (multitau_update(np.uint8), _ROWS),
    "multitau_update-u32": (multitau_update(np.uint32), _DTYPE_ROWS),
    "multitau_update-i32": (multitau_update(np.int32), _DTYPE_ROWS),
    "multitau_update-f32-in-f64": (multitau_update(np.float32), _DTYPE_ROWS),
    "multitau_update-f64": (multitau_update(np.float64), _DTYPE_ROWS),
    "two_time_g2-power2-f64": (two_time("two_time_g2", np.float64, 2), _REVERSE_ROWS),
    "two_time_g2-power0-f64": (two_time("two_time_g2", np.float64, 0), _FORWARD_ROWS),
    "normal_equations-f64": (normal_equations(np.float64, np.float64, loss=1), _OP_ROWS),
    "normal_equations-sigma-f64": (
        normal_equations(np.float64, np.float64, sigma_rank=2, symmetric=2),
        _DTYPE_ROWS,
    ),
    "normal_equations-f32-in-f64": (normal_equations(np.float32, np.float64), _DTYPE_ROWS),
    "normal_equations-f16-in-f64": (
        normal_equations(np.float16, np.float64),
        _DTYPE_ROWS,
    ),
    "normal_equations-u16-in-f64": (
        normal_equations(np.uint16, np.float64, symmetric=1),
        _DTYPE_ROWS,
    ),
    "normal_equations-f32": (normal_equations(np.float32, np.float32), _DTYPE_ROWS),
}
CASES = [(name, check) for name, (_, rows) in _CASES.items() for check in rows]


def case_arguments() -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the argument factory of each case by name; the part before the first '-' is the op."""
    return {name: make for name, (make, _) in _CASES.items()}


@functools.cache
def case(name: str) -> OpCheck:
    """Return one case, cached over its checks, which share compiled programs."""
    return OpCheck(**_CASES[name][0]())
