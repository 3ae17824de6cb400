"""Detectors' files as their formats say, written with struct and h5py alone.

Nothing here uses the readers, so that both would have to be wrong in the same way.
"""

from __future__ import annotations

import struct

import h5py
import numpy as np


def random_frames(seed, shape, dtype=np.uint16, occupancy=0.3, most=50):
    """Counts of which most are 0."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, most, shape) * (rng.random(shape) < occupancy)
    return counts.astype(dtype)


def rigaku_bytes(frames, base=0):
    """Words of the counts that are not 0, frame by frame."""
    words = bytearray()
    width = frames.shape[2]
    for number, frame in enumerate(frames):
        for row, column in zip(*np.nonzero(frame), strict=True):
            pixel = int(row) * width + int(column) + base
            words += struct.pack("<Q", number << 40 | pixel << 16 | int(frame[row, column]))
    return bytes(words)


def write_3m(folder, modules, base=1 << 20):
    """Six files of frames [N, 512, 1024] by the file's number; returns the first path."""
    for number, frames in enumerate(modules):
        (folder / f"run.bin.{number:03d}").write_bytes(rigaku_bytes(frames, base))
    return folder / "run.bin.000"


def imm_header(compression, rows, columns, length, elapsed=0.0, size=2):
    header = bytearray(1024)
    struct.pack_into("<i", header, 4, compression)
    header[8:27] = b"2024-05-01 10:00:00"
    struct.pack_into("<iii", header, 108, rows, columns, size)
    struct.pack_into("<dd", header, 128, elapsed, 0.05)
    struct.pack_into("<I", header, 152, length)
    return bytes(header)


def imm_bytes(frames, sparse, frame_time=0.1):
    parts = []
    for number, frame in enumerate(frames):
        flat = frame.ravel()
        place = np.flatnonzero(flat)
        length = len(place) if sparse else len(flat)
        parts.append(imm_header(6 if sparse else 0, *frame.shape, length, number * frame_time))
        if sparse:
            parts += [place.astype("<i4").tobytes(), flat[place].astype("<i2").tobytes()]
        else:
            parts.append(flat.astype("<u2").tobytes())
    return b"".join(parts)


def write_master(folder, frames, lengths, **options):
    """A NeXus master with links to one file for each of `lengths` frames; returns its path."""
    begin = 0
    with h5py.File(folder / "run_master.h5", "w") as master:
        data = master.create_group("entry/data")
        for number, length in enumerate(lengths, 1):
            part = folder / f"run_data_{number:06d}.h5"
            with h5py.File(part, "w") as file:
                stored = file.create_dataset(
                    "entry/data/data", data=frames[begin : begin + length], **options
                )
                # Each file counts from 1 again, or leaves numbers out.
                stored.attrs["image_nr_low"] = 1 + 100 * number
            data[f"data_{number:06d}"] = h5py.ExternalLink(part.name, "/entry/data/data")
            begin += length
        detector = master.create_group("entry/instrument/detector")
        detector["frame_time"], detector["count_time"] = 2e-3, 1.5e-3
        detector["detector_distance"] = 4250.0
        detector["detector_distance"].attrs["units"] = "mm"
        detector["x_pixel_size"] = 75e-6
        master["entry/instrument/beam/incident_wavelength"] = 1.2398419843320026
        master["entry/start_time"] = b"2024-05-01T10:00:00"
    return folder / "run_master.h5"


def write_simplemask(path, dynamic, static, mask, grids, group="qmap", **more):
    """A map of bins; `grids` has (q list, phi list, cells) of dynamic and static bins."""
    import h5py

    with h5py.File(path, "w") as file:
        at = file.create_group(group)
        at["dynamic_roi_map"], at["static_roi_map"] = dynamic, static
        at["mask"] = mask
        for kind, (q, phi, cells) in grids.items():
            at[f"{kind}_v_list_dim0"], at[f"{kind}_v_list_dim1"] = q, phi
            at[f"{kind}_num_pts"] = [len(q), len(phi)]
            at[f"{kind}_index_mapping"] = cells
        at["map_names"], at["map_units"] = ["q", "phi"], ["1/Å", "deg"]
        for key, value in more.items():
            at[key] = value
        at.attrs["hash"], at.attrs["version"] = "0", "1"
    return path


def write_arrays(file, suffix, arrays):
    """Write arrays by name to a path or a buffer, as `.npz` or HDF5."""
    if suffix == ".npz":
        np.savez(file, **arrays)
        return
    with h5py.File(file, "w") as opened:
        for name, array in arrays.items():
            opened[name] = array
