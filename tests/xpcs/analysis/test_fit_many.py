"""`fit_many` and `xpcs fit --many`: many data sets to one table.

Would catch: results that differ from those of single fits, a program that is compiled for each q,
finished data sets that are fitted again or stale ones that are not, a failure that stops the
others, and rings or windows of other frames than their labels say.
"""

from __future__ import annotations

import csv

import h5py
import numpy as np
import pytest

from jaxkern import performance, xpcs
from jaxkern.cli import main
from jaxkern.xpcs.analysis import fit_many as module
from jaxkern.xpcs.fitting.evaluation import FitProgress

N = 48
TRUTH = [2e4, 0.2, 50.0]


def model(q):
    geometry = xpcs.Geometry(q=q, gap=None, dt=0.1, t=0.1 * np.arange(N), phi=[0.0, 90.0])
    return xpcs.Static(geometry)


@pytest.fixture(scope="module")
def rings():
    """Models and data of three rings of q; NumPy computes the data."""
    models, data = [model(q) for q in (0.004, 0.005, 0.006)], []
    for k, m in enumerate(models):
        t = np.maximum(0.1 * np.arange(N), 0.05)
        rate = TRUTH[0] * t ** TRUTH[1] + TRUTH[2]
        steps = np.concatenate([[0], np.cumsum((rate[1:] + rate[:-1]) / 2)]) * 0.1
        decay = np.exp(-(m.geometry.q**2) * np.abs(steps[:, None] - steps))
        upper = np.triu(0.01 * np.random.default_rng(k).normal(size=(2, N, N)))
        data.append(1 + 0.3 * decay + upper + np.triu(upper[0], 1).T)
        data[-1] = np.triu(data[-1]) + np.swapaxes(np.triu(data[-1], 1), 1, 2)
    return models, data


def test_the_table_has_the_numbers_of_single_fits(rings, tmp_path):
    models, data = rings
    with performance.watch_compiles() as compiles:
        first = xpcs.fit(models[0], data[0], progress=False)
        count = compiles.compiles
        fits = xpcs.fit_many(data, models, progress=False)
    # All rings use the programs of the first fit.
    assert (fits.compilations, compiles.compiles) == (0, count)
    assert count > 0
    for k, (m, values) in enumerate(zip(models, data, strict=True)):
        single = first if k == 0 else xpcs.fit(m, values, progress=False)
        for name, value, error in zip(single.names, single.popt, single.perr, strict=True):
            assert fits.params[name][k] == value
            assert fits.errors[name][k] == error
        assert abs(fits.params["D0"][k] - TRUTH[0]) < 5 * fits.errors["D0"][k]
    assert [row["q"] for row in fits.table] == [0.004, 0.005, 0.006]
    with fits.write(tmp_path / "fits.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["D0"]) for row in rows] == fits.params["D0"].tolist()
    axes = fits.plot(tmp_path / "fits.png").axes
    assert [a.get_ylabel() for a in axes] == ["D0", "alpha", "D_offset"]
    assert axes[0].get_xlabel() == "q"


def test_finished_data_sets_are_read_back(rings, tmp_path, monkeypatch):
    models, data = rings
    sets = dict(zip("abc", data, strict=True))
    options = {"output": tmp_path, "search": "local", "progress": False}
    calls, real = [], module.fit

    def fit(m, values, **more):
        calls.append((m.geometry.q, more["search"]))
        if len(calls) == 2:
            raise OSError("the disk is away")
        return real(m, values, **more)

    monkeypatch.setattr(module, "fit", fit)
    fits = xpcs.fit_many(sets, models, retries=0, **options)
    assert [o.status for o in fits.outcomes] == ["done", "failed", "done"]
    assert fits.table[1]["message"] == "the disk is away"
    assert np.isnan(fits.params["D0"][1])
    again = xpcs.fit_many(sets, models, **options)
    assert [o.status for o in again.outcomes] == ["skipped", "done", "skipped"]
    assert [q for q, _ in calls] == [0.004, 0.005, 0.006, 0.005]
    for k in (0, 2):
        assert {**again.table[k], "status": "done"} == fits.table[k]
    # Other data of one set, and other arguments of all.
    changed = {**sets, "c": sets["c"] + 0.01}
    third = xpcs.fit_many(changed, models, **options)
    assert [o.status for o in third.outcomes] == ["skipped", "skipped", "done"]
    fourth = xpcs.fit_many(changed, models, hold=["D_offset"], **options)
    assert fourth.count("done") == 3


def test_a_fit_without_success_is_repeated_with_a_wide_search(rings):
    models, data = rings
    # Frames of two different samples, which no parameters describe.
    mixed = data[0].copy()
    mixed[:, : N // 2, : N // 2] = 1.0
    fits = xpcs.fit_many({"good": data[0], "mixed": mixed}, models[0], sigma=0.01, progress=False)
    assert fits.success.tolist() == [True, False]
    assert [row["repeated"] for row in fits.table] == [False, True]
    assert "mixed: the fit did not succeed" in repr(fits)


def test_errors_name_the_argument(rings):
    models, data = rings
    with pytest.raises(ValueError, match="model: expected 3, one per data set, got 2"):
        xpcs.fit_many(data, models[:2])
    with pytest.raises(ValueError, match="age: expected 3"):
        xpcs.fit_many(data, models, labels={"age": [1.0]})
    with pytest.raises(ValueError, match="different names"):
        xpcs.fit_many(["a/x.npy", "b/x.npy"], models[0])


def test_files_rings_and_windows(rings, tmp_path, capsys):
    data = rings[1]
    q = np.repeat([0.004, 0.006], 2)
    phi = np.array([0.0, 90.0, 0.0, 90.0])
    for name, scale in (("scan_2", 1.0), ("scan_10", 1.0)):
        stack = 1 + scale * (np.concatenate([data[0], data[2]]) - 1)
        xpcs.write_aps(tmp_path / f"{name}.h5", stack, q=q, phi=phi, dt=0.1)
    settings = tmp_path / "config.yaml"
    settings.write_text(
        "analysis: {model: static}\ninitial_parameters: {allow_bounds: true}\n"
        "optimization: {search: local}\n"
    )
    command = ["xpcs", "fit", "--config", str(settings), "--output-dir", str(tmp_path / "out")]
    command += ["--many", str(tmp_path / "scan_*.h5"), "--rings", "--windows", "2"]
    main([*command, "--quiet"])
    with (tmp_path / "out" / "fits.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["data"] for row in rows][:3] == [
        "scan_2-q0.004-frames1-24", "scan_2-q0.004-frames25-48", "scan_2-q0.006-frames1-24",
    ]  # fmt: skip
    assert [float(row["age"]) for row in rows[:2]] == pytest.approx([1.15, 3.55])
    assert [row["file"] for row in rows] == ["1"] * 4 + ["2"] * 4
    window = xpcs.Static(xpcs.Geometry(0.006, None, 0.1, 0.1 * np.arange(24), phi[:2]))
    # The file stores float32.
    stored = data[2].astype(np.float32)[:, 24:, 24:]
    single = xpcs.fit(window, stored, search="local", progress=False)
    best = rows[3]
    if best["repeated"] == "False":
        np.testing.assert_allclose(float(best["D0"]), single.as_dict["D0"], rtol=1e-3)
    assert (tmp_path / "out" / "fits.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    main(command)
    assert "0 done, 8 skipped, 0 failed" in capsys.readouterr().out
    assert main([*command[:-4], "nothing_*.h5"]) == 2


def test_a_damaged_file_does_not_stop_the_others(rings, tmp_path, capsys):
    models, data = rings
    for number in (1, 3):
        xpcs.write_aps(tmp_path / f"scan_{number}.h5", data[0], q=0.004, phi=[0.0, 90.0], dt=0.1)
    (tmp_path / "scan_2.h5").write_bytes(b"\x89HDF\r\n\x1a\n cut off")
    (tmp_path / "c.yaml").write_text("analysis: {model: static}")
    command = ["xpcs", "fit", "--config", str(tmp_path / "c.yaml"), "--no-plots", "--quiet"]
    command += ["--many", str(tmp_path / "scan_*.h5"), "--output-dir", str(tmp_path / "out")]
    assert main(command) == 1
    error = capsys.readouterr().err
    assert "scan_2: failed" in error
    with (tmp_path / "out/fits.csv").open(newline="") as file:
        rows = {row["data"]: row["status"] for row in csv.DictReader(file)}
    assert rows == {"scan_1": "done", "scan_3": "done", "scan_2": "failed"}
    for name in ("../x", "a/b", "..", ""):
        with pytest.raises(ValueError, match="expected names of folders"):
            xpcs.fit_many({name: data[0]}, models[0], output=tmp_path / "more")


def test_an_open_file_with_other_data_is_fitted_again(rings, tmp_path):
    models, data = rings
    values = []
    for matrices in data[:2]:
        with h5py.File(tmp_path / "data.h5", "w") as file:
            for k, matrix in enumerate(matrices):
                file[f"c2_{k:05d}"] = matrix
            fits = xpcs.fit_many(
                {"run": file["/"]}, models[0], output=tmp_path / "out", search="local"
            )
        values.append(fits.params["D0"][0])
    assert values[0] != values[1]


def test_a_killed_wide_search_resumes(rings, tmp_path, monkeypatch):
    """Its checkpoint was read by the first search, which raised CheckpointError in every call."""
    noise = 1 + 0.01 * np.random.default_rng(1).normal(size=(2, N, N))
    streaming = xpcs.StreamingOptions(enable_checkpoints=True, checkpoint_dir=tmp_path / "saved")
    options = {"streaming": streaming, "output": tmp_path / "out", "progress": False}

    def kill(model, data, **arguments):
        def stop(self, number, cost):
            if number > 1:  # after the first checkpoint
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            if arguments["search"] == "wide":
                patch.setattr(FitProgress, "after_pass", stop)
            return xpcs.fit(model, data, **arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, "fit", kill)
        with pytest.raises(KeyboardInterrupt):
            xpcs.fit_many([noise], rings[0][0], **options)
    assert xpcs.fit_many([noise], rings[0][0], **options).count("done") == 1


def test_plots_against_numbers_of_numpy_and_without_labels():
    row = {"D0": 1.0, "D0_err": 0.1, "success": True}
    outcomes = [module.FitOutcome(str(k), {"age": np.int64(k)}, "done", row=row) for k in (1, 2)]
    fits = module.ManyFits((*outcomes, module.FitOutcome("bad", {}, "failed", "damaged")))
    assert fits.plot().axes[0].get_xlabel() == "age"
