"""q, time step and gap of a measurement, from real files: values used, notes and errors.

Would catch: a time step or a gap that is guessed, one of the settings that silently replaces the
file's, rings that lose angles, a mean q of angles that are not fitted.
"""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from support.errors import raises

from jaxkern.cli import main
from jaxkern.xpcs import ConfigError, write_aps
from jaxkern.xpcs.analysis import run as analysis
from jaxkern.xpcs.analysis.settings import parse_config

N = 12


def measured(path, *, layout="aps-u", q=0.0054, phi=(0.0, 90.0), **more):
    """A file; its time step is 0.04 s x 2 x 3, or missing."""
    write_aps(path, np.ones((len(phi), N, N)), q=q, phi=phi, layout=layout, **more)
    if more.get("dt") is not None and layout == "aps-u":
        with h5py.File(path, "a") as file:
            file["xpcs/twotime/config/stride_frame"][...] = 2
            file["xpcs/twotime/config/avg_frame"][...] = 3
    return path


def opened(path, **settings):
    tree = {"data_files": {"file": str(path)}, "analysis": {"model": "static"}}
    for name, value in settings.items():
        section, key = name.split("__")
        tree.setdefault(section, {})[key] = value
    return analysis.open_measurement(parse_config(tree))


def fails(path, *facts, **settings):
    with raises(ConfigError, *facts), opened(path, **settings):
        pass


def test_the_files_time_step_is_used(tmp_path):
    path = measured(tmp_path / "m.h5", dt=0.04)
    with opened(path) as measurement:
        geometry = measurement.model.geometry
        assert geometry.dt == pytest.approx(0.24)
        np.testing.assert_allclose(geometry.t, 0.24 * np.arange(N))
        assert "dt 0.24 s (file), no gap" in measurement.describe()
    with opened(path, experiment__dt=0.24 * (1 + 5e-7)) as measurement:
        assert "dt 0.24 s (file and settings)" in measurement.describe()
        assert not measurement.notes


def test_a_time_step_that_differs_is_refused_unless_it_is_meant(tmp_path):
    path = measured(tmp_path / "m.h5", dt=0.04)
    for dt in (0.04, 0.24 * (1 + 3e-6)):
        fails(path, "experiment.dt", "m.h5", "0.24 s", experiment__dt=dt)
    with opened(path, experiment__dt=0.04, experiment__dt_override=True) as measurement:
        assert measurement.model.geometry.dt == 0.04
        assert "dt 0.04 s (settings)" in measurement.describe()
        assert "0.24 s apart; experiment.dt_override is set" in measurement.notes[0]


def test_a_time_step_that_nobody_says_is_refused(tmp_path):
    path = measured(tmp_path / "m.h5")
    fails(path, "m.h5", "experiment.dt")
    with opened(path, experiment__dt=0.5) as measurement:
        assert "dt 0.5 s (settings)" in measurement.describe()


def test_shear_needs_a_gap_and_times_are_not_negative(tmp_path):
    path = measured(tmp_path / "m.h5", dt=0.04)
    fails(path, "experiment.gap", "laminar_flow", analysis__model="laminar_flow")
    with opened(path, analysis__model="laminar_flow", experiment__gap=1e6) as measurement:
        assert "gap 1e+06 Angstrom" in measurement.describe()
        assert measurement.model.geometry.gap == 1e6
    fails(path, "experiment.start_time", "-1", experiment__start_time=-1.0)


def test_a_ring_whose_q_varies(tmp_path):
    phi = 30.0 * np.arange(6)
    ring = 0.0054 * np.array([1.0, 1.05, 0.95, 1.02, 1.0, 1.25])
    path = measured(tmp_path / "m.h5", layout="aps", q=ring, phi=phi, dt=1.0)
    with opened(path, data_files__q=0.0054) as measurement:
        assert measurement.data.shape[0] == 5
        assert measurement.model.geometry.q == pytest.approx(ring[:5].mean())
        text = measurement.describe()
        assert "q 0.0054216 1/Angstrom (the mean of 0.00513 to 0.00567, requested 0.0054)" in text
        assert "1 angles of the file have no matrix within 0.1 of q 0.0054" in measurement.notes[0]
        assert measurement.notes[0].endswith("are left out: phi 150")
    with opened(path, data_files__q=0.0054, data_files__q_tolerance=0.3) as measurement:
        assert measurement.data.shape[0] == 6
    # The mean is of the angles that are fitted.
    chosen = {"enabled": True, "ranges": [[25, 65]]}
    with opened(path, data_files__q=0.0054, analysis__phi_filtering=chosen) as measurement:
        assert measurement.model.geometry.q == pytest.approx(ring[1:3].mean())
    fails(path, "m.h5", "data_files.q", "0.00513")
    fails(path, "q_tolerance", "got 2", data_files__q_tolerance=2)


def test_an_empty_cell_is_not_filled_from_the_next_ring(tmp_path):
    """Rings of a grid 8% apart; at 60 degrees only the outer one has pixels."""
    q, phi = [0.0050, 0.0050, 0.0054, 0.0054, 0.0054], [0.0, 30.0, 0.0, 30.0, 60.0]
    path = measured(tmp_path / "m.h5", q=q, phi=phi, dt=1.0)
    with opened(path, data_files__q=0.00501) as measurement:
        assert measurement.model.geometry.phi.tolist() == [0.0, 30.0]
        assert "q 0.005 1/Angstrom (requested 0.00501)" in measurement.describe()
        assert measurement.notes == (
            "1 angles of the file have no matrix of q 0.005 and are left out: phi 60",
        )
    # One ring needs no q.
    ring = [0.0054, 0.0056, 0.0052]
    path = measured(tmp_path / "one.h5", layout="aps", q=ring, phi=[0.0, 30.0, 60.0], dt=1.0)
    with opened(path) as measurement:
        assert measurement.data.shape[0] == 3
        assert measurement.model.geometry.q == pytest.approx(0.0054)


def test_simulated_files_say_their_time_step_and_tell_the_gap(tmp_path, capsys):
    config = tmp_path / "c.yaml"
    config.write_text("data_files: {file: s.h5}\nsimulation: {frames: 16, phi: [0.0]}\n")

    def run(action, *more):
        arguments = ["--config", str(config), "--output-dir", str(tmp_path / "out"), *more]
        code = main(["xpcs", action, *arguments])
        return code, capsys.readouterr()

    code, printed = run("simulate")
    assert code == 0
    assert "dt 0.1 s, gap 2e+06 Angstrom" in printed.out
    with opened(tmp_path / "s.h5") as measurement:
        assert measurement.model.geometry.dt == 0.1
    code, printed = run("plot")
    assert code == 2
    assert "error: experiment.gap" in printed.err
    # Notes are printed even in quiet mode.
    override = ["--set", "experiment.dt=0.2", "--set", "experiment.dt_override=true"]
    code, printed = run("plot", "--quiet", "--set", "experiment.gap=2e6", *override)
    assert "note: experiment.dt is 0.2 s" in printed.err
    assert printed.out == ""


def test_frames_past_the_end_and_the_first_one(tmp_path):
    path = measured(tmp_path / "m.h5", dt=0.04)
    frames = {"start": 2, "end": 99, "exclude_first": True, "bad": [4]}
    with opened(path, analysis__frames=frames) as measurement:
        assert measurement.data.frames == (1, N)
        assert measurement.keep.tolist() == [0, 1, 0] + [1] * (N - 4)
        assert measurement.notes == (
            "analysis.frames.end: the data have 12 frames, so frame 12 replaces frame 99",
        )
