"""Correlations and files compared with boost-corr on the CPU, with exact levels (max_count=4096).

Would catch a definition that differs from what users of boost-corr have, where both agree: delays,
levels, means over static bins, errors, two-time matrices, and the layout of its files.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from boost_corr import MultitauCorrelator, TwotimeCorrelator
from boost_corr.xpcs_aps_8idi.dataset import utils as datasets
from boost_corr.xpcs_aps_8idi.xpcs_qpartitionmap import XpcsQPartitionMap
from support.xpcs.detector_files import imm_bytes, random_frames, rigaku_bytes, write_3m

import jaxkern as jk

SHAPE = (16, 24)


def bins():
    """A map with 3 dynamic bins of 2 or 3 static ones, and pixels that belong to none."""
    dynamic = np.zeros(SHAPE, np.int32)
    static = np.zeros(SHAPE, np.int32)
    for place, row in enumerate((1, 6, 11)):
        dynamic[row : row + 4, 2:22] = place + 1
        for part in range(4):
            static[row + part, 2:22] = 1 + 4 * place + part // (1 + place % 2)
    numbers = np.unique(static[static > 0])
    static[static > 0] = 1 + np.searchsorted(numbers, static[static > 0])
    mask = dynamic > 0
    mask[::5, ::3] = False
    # boost-corr divides by the pixels of the static map, also where the mask is 0.
    return np.where(mask, dynamic, 0), np.where(mask, static, 0), mask


def speckles(seed, n, dtype=np.uint8):
    """Counts that are correlated for some frames, so that g2 is not 1."""
    rng = np.random.default_rng(seed)
    field = rng.standard_normal((2, *SHAPE))
    frames = np.empty((n, *SHAPE), dtype)
    for frame in frames:
        field = 0.9 * field + np.sqrt(1 - 0.81) * rng.standard_normal((2, *SHAPE))
        frame[:] = rng.poisson(1.5 * (field**2).sum(0))
    return frames


@pytest.fixture
def qmap(tmp_path):
    dynamic, static, mask = bins()
    made = jk.xpcs.QMap(dynamic, static, mask, q=[0.01, 0.02, 0.03])
    made.write(tmp_path / "qmap.h5")
    return made


def write_frames(path, frames):
    import h5py

    with h5py.File(path, "w") as file:
        file["entry/data/data"] = frames
    return path


def dataset(path, mask_crop=None, **options):
    chosen = {"avg_frame": 1, "begin_frame": 0, "end_frame": -1, "stride_frame": 1, **options}
    return datasets.create_dataset(str(path), "cpu", mask_crop, **chosen)[0]


def boost_multitau(folder, raw, normalize=False, **options):
    qpm = XpcsQPartitionMap(str(folder / "qmap.h5"), device="cpu", crop_ratio_threshold=2.0)
    data = dataset(raw, qpm.mask_crop, **options)
    correlator = MultitauCorrelator(
        data.det_size, data.frame_num, device="cpu", queue_size=8, max_memory=0.05,
        mask_crop=qpm.mask_crop, normalize_frame=normalize, max_count=4096, qpm=qpm,
    )  # fmt: skip
    correlator.process_dataset(data, verbose=False)
    scattering, multitau = correlator.get_results()
    return qpm.normalize_multitau(multitau), qpm.normalize_scattering(scattering)


@pytest.mark.parametrize("n", [97, 1000])
@pytest.mark.parametrize(
    "options", [{}, {"avg_frame": 3}, {"stride_frame": 2}, {"begin_frame": 5, "end_frame": 90}]
)
def test_multitau(tmp_path, qmap, n, options):
    frames = speckles(n, n)
    raw = write_frames(tmp_path / "raw.h5", frames)
    theirs, scattering = boost_multitau(tmp_path, raw, **options)
    ours = jk.xpcs.multitau(
        raw, qmap, begin=options.get("begin_frame", 0), end=options.get("end_frame"),
        stride=options.get("stride_frame", 1), average=options.get("avg_frame", 1),
        overview=True, progress=False,
    )  # fmt: skip
    assert theirs["delay_list"].tolist() == ours.delay.tolist()
    np.testing.assert_allclose(theirs["g2"], ours.g2, rtol=2e-5)
    np.testing.assert_allclose(theirs["g2_err"], ours.g2_err, rtol=2e-3, atol=1e-6)
    np.testing.assert_allclose(
        scattering["saxs_2d"][0][qmap.used], ours.overview.mean_image[qmap.used], rtol=1e-5
    )


def test_multitau_of_a_map_with_masked_pixels_inside_its_bins(tmp_path):
    """boost-corr also counts pixels outside the mask: its g2 is ours times all over good pixels."""
    frames = speckles(5, 64)
    dynamic = np.ones(SHAPE, int)
    mask = np.ones(SHAPE, bool)
    mask[:, :6] = False
    qmap = jk.xpcs.QMap(dynamic, mask=mask)
    qmap.write(tmp_path / "qmap.h5")
    theirs, _ = boost_multitau(tmp_path, write_frames(tmp_path / "raw.h5", frames))
    ours = jk.xpcs.multitau(frames, qmap, progress=False)
    np.testing.assert_allclose(theirs["g2"], ours.g2 * mask.size / mask.sum(), rtol=2e-5)


def test_multitau_of_normalized_frames(tmp_path, qmap):
    frames = speckles(3, 300) + 1
    raw = write_frames(tmp_path / "raw.h5", frames)
    theirs, _ = boost_multitau(tmp_path, raw, normalize=True)
    ours = jk.xpcs.multitau(frames, qmap, normalize=True, progress=False)
    np.testing.assert_allclose(theirs["g2"], ours.g2, rtol=5e-5)


@pytest.mark.parametrize("smoothing", ["static", "none"])
def test_twotime(tmp_path, qmap, smoothing):
    frames = speckles(4, 60)
    raw = write_frames(tmp_path / "raw.h5", frames)
    qpm = XpcsQPartitionMap(
        str(tmp_path / "qmap.h5"), flag_sort=True, device="cpu", crop_ratio_threshold=2.0
    )
    data = dataset(raw, qpm.mask_crop)
    correlator = TwotimeCorrelator(
        qpm.qinfo, data.frame_num, data.det_size, mask_crop=qpm.mask_crop, device="cpu"
    )
    correlator.process_dataset(data, verbose=False)
    correlator.cache = correlator.cache.float()
    if smoothing == "static":
        correlator.compute_smooth_data("sqmap")
    *matrices, last = correlator.get_twotime_generator()
    ours = jk.xpcs.twotime(frames, qmap, smoothing=smoothing)
    assert list(last["processed_bins"]) == ours.bins.tolist()
    for place, matrix in enumerate(matrices):
        (c2,) = matrix.values()
        np.testing.assert_allclose(c2, np.triu(ours.c2[place]), rtol=3e-5, atol=1e-6)
    np.testing.assert_allclose(last["c2_g2"], ours.g2, rtol=3e-5)
    np.testing.assert_allclose(last["c2_g2_segments"], np.moveaxis(ours.g2_parts, 0, 1), rtol=3e-5)


def check_frames(path, data, pixels):
    """Consecutive batches of boost-corr equal ours."""
    with jk.xpcs.open_frames(path) as source:
        assert (data.frame_num, *data.det_size) == source.shape
        begin = 0
        for number in range(len(data)):
            theirs = data[number].numpy()
            ours = source.read(begin, begin + len(theirs)).reshape(len(theirs), -1)
            np.testing.assert_array_equal(theirs[:, pixels], ours[:, pixels])
            begin += len(theirs)
        assert begin == len(source)


@pytest.mark.parametrize("base", [0, 1 << 20])
def test_files_of_rigaku(tmp_path, base):
    # boost-corr keeps 8 bits of a count.
    frames = random_frames(1, (1100, 512, 1024), np.uint8, occupancy=2e-5)
    frames[-1, 3, 4] = 200
    path = tmp_path / "run.bin"
    path.write_bytes(rigaku_bytes(frames, base))
    check_frames(path, dataset(path), slice(None))


def test_files_of_rigaku_3m(tmp_path):
    modules = [random_frames(n, (5, 512, 1024), np.uint8, occupancy=1e-4) for n in range(6)]
    path = write_3m(tmp_path, modules)
    data = dataset(path)
    check_frames(path, data, slice(None))


@pytest.mark.parametrize("sparse", [True, False])
def test_files_of_imm(tmp_path, sparse):
    # boost-corr holds counts of IMM files in 16 bits with a sign.
    frames = random_frames(2, (40, 9, 14), most=2000)
    path = tmp_path / "run.imm"
    path.write_bytes(imm_bytes(frames, sparse))
    data = dataset(path)
    if sparse:  # boost-corr assumes 512 x 1024 before this call
        data.update_det_size(data.det_size)
    check_frames(path, data, slice(None))


def test_torch_runs_on_the_cpu():
    """The comparison is of boost-corr on the CPU, whatever else there is."""
    assert torch.zeros(1).device.type == "cpu"
