"""`xpcs inspect` and `xpcs report`: the numbers on the pages, and pages that need nothing else.

Would catch: a number of another bin or frame, text of a file that is markup, a figure that is
missing or not an image, an error that is a traceback.
"""

from __future__ import annotations

import base64
import io
import json
from html.parser import HTMLParser

import numpy as np
import pytest

from jaxkern import xpcs
from jaxkern.cli import main
from jaxkern.xpcs.analysis.html_page import Page
from jaxkern.xpcs.analysis.inspect import frame_list, unusual_frames

pytest.importorskip("matplotlib")
from PIL import Image

Q = np.array([0.01, 0.015, 0.02])


class Parsed(HTMLParser):
    """The rows of all tables, the remarks, and the sizes of the images of a page."""

    def __init__(self, path):
        super().__init__()
        self.rows, self.remarks, self.images, self.stack = [], [], [], []
        text = path.read_text()
        assert "http" not in text  # nothing is fetched
        self.feed(text)
        assert self.stack == []

    def handle_starttag(self, tag, attributes):
        if tag == "img":
            kind, data = dict(attributes)["src"].split(",")
            assert kind == "data:image/png;base64"
            self.images.append(Image.open(io.BytesIO(base64.b64decode(data))).size)
        elif tag != "meta":
            self.stack.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "li":
            self.remarks.append("")

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if self.stack and self.stack[-1] in ("td", "th"):
            self.rows[-1][-1] += data
        if self.stack and self.stack[-1] == "li":
            self.remarks[-1] += data

    def value(self, name):
        return next(row[1] for row in self.rows if row[0] == name)

    def table(self, first):
        """Return the rows below the title `first` as dictionaries."""
        start = next(k for k, row in enumerate(self.rows) if row[0] == first)
        names = self.rows[start]
        after = self.rows[start + 1 :]
        stop = next((k for k, row in enumerate(after) if len(row) != len(names)), len(after))
        return [dict(zip(names, row, strict=True)) for row in after[:stop]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    qmap = xpcs.QMap(np.repeat([[1], [2], [3]], 100, 1), q=Q, phi=np.zeros(3))
    simulated = xpcs.simulate_frames(
        200 * Q**2, n_frames=800, qmap=qmap, photons=2.0, seed=1, progress=False
    )
    frames = np.array(simulated.read(0, 800), np.uint16)
    frames[300], frames[500] = 0, 3 * frames[500]
    frames[:, 1, 17], frames[:, 2, 5] = 250, 0
    np.save(folder / "frames.npy", frames)
    qmap.write(folder / "qmap.h5")
    result = xpcs.multitau(
        frames, qmap.without(np.array([[1, 17], [2, 5]])), parts=2, overview=True,
        bad_frames=[300, 500], progress=False,
    )  # fmt: skip
    xpcs.write_results(folder / "g2.hdf", result)
    pairs = xpcs.twotime(frames[:60], qmap, bins=[1], frame_time=1e-3, progress=False)
    xpcs.write_results(folder / "pairs.hdf", None, pairs)
    return folder


def test_frames_with_bins(folder, tmp_path):
    page = tmp_path / "page.html"
    command = ["xpcs", "inspect", str(folder / "frames.npy"), "--output", str(page), "--quiet"]
    assert main([*command, "--qmap", str(folder / "qmap.h5"), "--frame-time", "0.001"]) == 0
    parsed, frames = Parsed(page), np.load(folder / "frames.npy")
    assert any("--bad-frames 300,500" in line for line in parsed.remarks)
    assert float(parsed.value("duration (s)")) == 0.8
    assert float(parsed.value("mean counts of a pixel in a frame")) == pytest.approx(
        frames.mean(), rel=1e-4
    )
    assert [(row["row"], row["column"]) for row in parsed.table("row")] == [("1", "17"), ("2", "5")]
    bins = parsed.table("bin")
    assert [row["suspect"] for row in bins] == ["0", "1", "1"]
    counts = frames[:, 0].astype(float)
    excess = (counts.var(0) - counts.mean(0)).sum() / (counts.mean(0) ** 2).sum()
    assert float(bins[0]["excess variance"]) == pytest.approx(excess, rel=1e-4)
    assert len(parsed.images) == 2
    assert main([*command]) == 2  # the page exists
    assert main([*command, "--force"]) == 0
    assert "bin" not in [row[0] for row in Parsed(page).rows]


def test_unusual_frames():
    random = np.random.default_rng(0)
    intensity = np.linspace(1.0, 3.0, 1050) + random.normal(0, 0.01, 1050)  # a drift is none
    intensity[[0, 7, 8, 1049]] = [0, np.nan, 9.0, 0.1]
    assert unusual_frames(intensity).tolist() == [0, 7, 8, 1049]
    assert unusual_frames(np.full(20, 2.0)).tolist() == []
    for photons in (0.3, 3.0, 50.0):  # in a frame of 100 pixels
        counts = random.poisson(photons, 2000)
        assert unusual_frames(counts / 100, 100).tolist() == []
        counts[7] = 200
        assert unusual_frames(counts / 100, 100).tolist() == [7]
    assert frame_list([0, 7, 8, 9, 1049]) == "0,7-9,1049"
    assert frame_list([]) == ""


def test_matrices(folder, tmp_path):
    n = np.arange(80)
    decay = 1 + 0.3 * np.exp(-np.abs(n[:, None] - n) / 5)
    noise = np.random.default_rng(0).normal(0, 0.01, (3, 80, 80))
    c2 = decay + (noise + noise.swapaxes(1, 2)) / np.sqrt(2)
    c2[2] = np.nan
    path = xpcs.write_aps(tmp_path / "two.h5", c2, q=0.01, phi=[0, 45, 90])
    page = tmp_path / "page.html"
    assert main(["xpcs", "inspect", str(path), "--output", str(page), "--quiet"]) == 0
    parsed = Parsed(page)
    rows = parsed.table("matrix")
    assert [row["phi (deg)"] for row in rows] == ["0", "45", "90"]
    for row in rows[:2]:
        assert abs(float(row["noise"]) - 0.01) < 0.002
        assert abs(float(row["baseline"]) - 1) < 0.02
        assert abs(float(row["contrast"]) - 0.3 * np.exp(-1 / 5)) < 0.1
    assert parsed.remarks == ["matrices without numbers: 2"]
    assert main(["xpcs", "inspect", str(folder / "g2.hdf"), "--output", str(page), "--force"]) == 2


def test_report_of_g2(folder, tmp_path, capsys):
    page = tmp_path / "page.html"
    command = ["xpcs", "report", str(folder / "g2.hdf"), "--output", str(page), "--quiet"]
    assert main(command) == 0
    assert "The time between frames is unknown" in page.read_text()
    assert main([*command, "--frame-time", "0.001", "--force"]) == 0
    parsed = Parsed(page)
    result = xpcs.read_results(folder / "g2.hdf").multitau.with_frame_time(1e-3)
    assert result.tau[0] == 1e-3
    fit = result.fit_g2()
    assert [row["rate"] for row in parsed.table("bin")] == [f"{x:.5g}" for x in fit.params["rate"]]
    assert f"exponent {fit.tau_q().exponent:.4g}" in page.read_text()
    assert len(parsed.images) == 6  # g2, fits, power law, stability, intensity, detector
    assert main([*command, "--frame-time", "0", "--force"]) == 2
    assert "expected seconds > 0" in capsys.readouterr().err


def test_report_of_two_time_correlations(folder, tmp_path):
    page = tmp_path / "page.html"
    assert main(["xpcs", "report", str(folder / "pairs.hdf"), "--output", str(page)]) == 0
    assert len(Parsed(page).images) >= 1


def test_report_of_a_fit(tmp_path, monkeypatch):
    settings = """\
data_files: {file: run<b>.h5}
analysis: {model: static}
simulation: {frames: 90, phi: [0.0, 60.0], noise: 0.01}
initial_parameters: {hold: [D_offset]}
"""
    (tmp_path / "config.yaml").write_text(settings)
    monkeypatch.chdir(tmp_path)
    for action in ("simulate", "fit --no-plots"):
        assert main(["xpcs", *action.split(), "--config", "config.yaml", "--quiet"]) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # the settings store the data file's whole path
    assert main(["xpcs", "report", "../results", "--quiet"]) == 0
    page = tmp_path / "results/report.html"
    parsed, record = Parsed(page), json.loads((tmp_path / "results/results.json").read_text())
    rows = {row["parameter"]: row for row in parsed.table("parameter")}
    assert rows.keys() == record["parameters"].keys()
    d0, fitted = rows["D0"], record["parameters"]["D0"]
    assert float(d0["value"]) == pytest.approx(fitted["value"], rel=1e-4)
    assert record["errors"].startswith("jackknife over 10 blocks")
    low = fitted["value"] - 2.262157 * fitted["error"]  # Student's factor of 9 degrees of freedom
    assert float(d0["95% low"]) == pytest.approx(low, rel=1e-3)
    assert rows["D_offset"]["error"] == "held"
    assert [row["angle (deg)"] for row in parsed.table("angle (deg)")] == ["0", "60"]
    assert len(parsed.images) == 5
    assert "run&lt;b&gt;.h5" in page.read_text()
    assert main(["xpcs", "report", "../results"]) == 2  # the page exists


def test_text_is_escaped(tmp_path):
    page = Page("<a>", "b & c")
    page.table([{"<name>": "<td>", "none": None}])
    page.remarks(["<li>"])
    page.remarks([])
    parsed = Parsed(page.write(tmp_path / "page.html"))
    assert parsed.rows == [["<name>", "none"], ["<td>", ""]]
    assert parsed.remarks == ["<li>"]
