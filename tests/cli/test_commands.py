"""`python -m jaxkern doctor | bench | ...`: would catch output that is not JSON, a script that runs
differently than with Python, lost exit codes, and errors that are tracebacks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata

import pytest
from matplotlib.figure import Figure
from support.core.short_probes import shorten

import jaxkern as jk
from jaxkern.benchmarking.plots import bar_chart
from jaxkern.cli import main

SCRIPT = """\
import sys
from pathlib import Path
import jax, jax.numpy as jnp
import neighbor
print("arguments", sys.argv[1:], __name__, neighbor.VALUE)
product = jax.jit(lambda x: jnp.tanh(x @ x))
for _ in range(4):
    product(jnp.ones((200, 200))).block_until_ready()
if "fail" in sys.argv:
    raise SystemExit(7)
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "neighbor.py").write_text("VALUE = 'next to it'\n")
    path = tmp_path / "code" / "work.py"
    path.write_text(SCRIPT)
    yield path
    sys.modules.pop("neighbor", None)


def test_doctor_as_json(capsys):
    code = main(["doctor", "--json"])
    result = json.loads(capsys.readouterr().out)
    diagnosis = jk.doctor()
    assert result["ok"] == diagnosis.ok == (code == 0)
    assert result["versions"] == diagnosis.versions
    assert [op["target"] for op in result["ops"]] == [op.target for op in diagnosis.ops]
    assert result["libraries"][0]["targets"] == diagnosis.libraries[0].targets


def test_profile_runs_the_script_like_python(script, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["profile", "--top", "3", str(script), "--plot", "x"]) == 0
    shown = capfd.readouterr().out
    assert "arguments ['--plot', 'x'] __main__ next to it" in shown
    assert "jit(<lambda>)/dot_general" in shown
    assert "the script took" in shown
    assert list((tmp_path / "benchmark-results" / "profile-work").rglob("*.trace.json.gz"))


def test_profile_as_json_with_a_plot(script, tmp_path, capfd):
    plot = tmp_path / "plots" / "where.png"
    arguments = ["--json", "--plot", str(plot), "--output-dir", str(tmp_path / "out")]
    assert main(["profile", *arguments, str(script), "fail"]) == 7
    out, err = capfd.readouterr()
    result = json.loads(out)
    assert "arguments ['fail']" in err
    assert result["exit_code"] == 7
    (product,) = [op for op in result["ops"] if op["scope"].endswith("/dot_general")]
    assert product["calls"] == 4
    assert 0 < result["compile_seconds"] < result["wall_seconds"]
    assert result["op_seconds"] == pytest.approx(sum(op["seconds"] for op in result["ops"]))
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_bars_of_equal_names_do_not_overlap(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: figures.append(self))
    bar_chart(tmp_path / "x.png", ["crop", "crop", "flip"], [3550.0, 2.0, 0.25], "times", "ms")
    (axes,) = figures[0].axes
    bars = [(round(bar.get_y() + bar.get_height() / 2), bar.get_width()) for bar in axes.patches]
    assert bars == [(0, 0.25), (1, 2.0), (2, 3550.0)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["flip", "crop", "crop"]
    assert [text.get_text() for text in axes.texts] == ["0.25", "2", "3,550"]


def test_bench(tmp_path, capsys):
    arguments = ["bench", "--case", "image-normalize", "--rounds", "5", "--output-dir"]
    arguments += [str(tmp_path / "saved"), "--plot", str(tmp_path / "x.png")]
    assert main([*arguments, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    (case,) = first["cases"]
    assert case["checked"] == "All results are close"
    assert case["speedup"]["value"] == pytest.approx(
        case["jax_seconds"] / case["native_seconds"], rel=1e-9
    )
    names = sorted(jk.benchmarking.load(path).name for path in first["files"])
    assert names == ["image-normalize-jax", "image-normalize-native"]
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert main([*arguments, "--baseline", str(tmp_path / "saved")]) == 0
    table = capsys.readouterr().out
    assert "image-normalize" in table
    assert "against the baseline" in table


def test_bench_reports_a_missing_native_kernel(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(jk.Op, "problem", lambda *_: "hidden by the test")
    arguments = ["bench", "--case", "image-normalize", "--output-dir", str(tmp_path)]
    assert main(arguments) == 0
    assert "not timed: jaxkern.image_chain" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_roofline(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shorten(monkeypatch)
    plot = tmp_path / "plots" / "g2.png"
    assert main(["roofline", "--case", "xpcs-g2", "--json", "--plot", str(plot)]) == 0
    result = json.loads(capsys.readouterr().out)["cases"]["xpcs-g2"]
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert result["bottleneck"] in ("compute", "memory")
    assert result["time"] > 0
    assert main(["roofline", "--case", "image-normalize"]) == 0
    assert "image-normalize: roofline of" in capsys.readouterr().out
    assert main(["roofline", "--case", "nothing"]) == 2


def test_device(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shorten(monkeypatch)
    assert main(["device", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    status = jk.device.get_device_status()
    assert result["status"]["usable_cpus"] == status.usable_cpus
    assert result["performance"] is None
    assert main(["device", "--measure"]) == 0
    assert "two-time g2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["profile", "missing.py"], "missing.py"),
        (["profile", "--top", "0", __file__], "--top"),
        (["profile", "--plot", "x.nothing", __file__], "x.nothing"),
        (["profile"], "SCRIPT"),
        (["profile", "--unknown", __file__], "--unknown"),
        (["bench", "--case", "nothing"], "image-crops"),
        (["bench", "--case", "xpcs-g2", "--rounds", "0"], "--rounds"),
        (["bench", "--rounds", "many"], "--rounds"),
        (["unknown"], "unknown"),
    ],
)
def test_invalid_input(arguments, fact, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert fact in err
    assert "Traceback" not in out + err


def test_without_click(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "click", None)
    assert main(["doctor", "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["versions"]
    assert main(["bench"]) == 2
    assert "pip install 'jaxkern-native[cli]'" in capsys.readouterr().err


def test_completion(capsys, monkeypatch):
    monkeypatch.setenv("_JAXKERN_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "jaxkern roof")
    monkeypatch.setenv("COMP_CWORD", "1")
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out == "plain,roofline\n"


def test_missing_package(capfd, tmp_path, monkeypatch, script):
    monkeypatch.setitem(sys.modules, "matplotlib.backend_bases", None)
    monkeypatch.chdir(tmp_path)
    # Before the script runs, not after.
    assert main(["profile", "--json", "--plot", "x.png", str(script)]) == 2
    err = capfd.readouterr().err
    assert "matplotlib is not installed; pip install 'jaxkern-native[cli]'" in err
    assert "arguments" not in err


WRONG = """\
import os, jax
os.system("echo from a child")
with jax.profiler.trace("own-profile"):
    pass
"""


def test_script_that_fails_because_it_profiles_itself(tmp_path, capfd, monkeypatch):
    """Output of the script and its child processes is not in the JSON; no plot, no matplotlib."""
    script = tmp_path / "wrong.py"
    script.write_text(WRONG)
    monkeypatch.setitem(sys.modules, "matplotlib.backend_bases", None)
    monkeypatch.chdir(tmp_path)
    assert main(["profile", "--json", str(script)]) == 1
    out, err = capfd.readouterr()
    assert json.loads(out)["exit_code"] == 1
    for text in ("from a child", "Traceback", "wrong.py", "the script uses JAX's profiler"):
        assert text in err


def test_version(capsys):
    assert main(["--version"]) == 0
    assert jk.__version__ in capsys.readouterr().out


def test_installed_as_a_command_whose_help_imports_no_other_package_than_click():
    (entry,) = metadata.entry_points(group="console_scripts", name="jaxkern")
    assert entry.load() is main
    complete = {"_JAXKERN_COMPLETE": "bash_complete", "COMP_WORDS": "jaxkern xp", "COMP_CWORD": "1"}
    for words, variables, expected in (
        (["--help"], {}, "roofline"),
        (["xpcs", "correlate", "--help"], {}, "--plots"),
        ([], complete, "xpcs"),
    ):
        command = [sys.executable, "-P", "-v", "-m", "jaxkern", *words]
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        assert expected in done.stdout
        imported = set(re.findall(r"^import '([^']+)'", done.stderr, re.MULTILINE))
        foreign = {name.partition(".")[0] for name in imported} - set(sys.stdlib_module_names)
        assert {"click", "jaxkern"} <= foreign
        assert not foreign & {"jax", "numpy", "rich", "matplotlib", "yaml", "h5py"}, foreign


LATE = """\
import atexit, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import jax, jax.numpy as jnp
print("file", __file__, sys.argv[0])
def cube(x):
    return x @ x @ x
product = jax.jit(cube)
x = jnp.ones((1200, 1200)).block_until_ready()
y = product(product(x))
def discard():
    product(product(x))
discard()
def late():
    global z
    time.sleep(0.5)
    z = product(x)
    print("late", __name__, sys.modules["__main__"].__file__ == __file__)
threading.Thread(target=late).start()
ThreadPoolExecutor(1).submit(print, "pooled")
atexit.register(print, "at exit")
"""


def test_profile_waits_for_pending_work(tmp_path):
    """Runs in a separate process, which exits and has no other computations."""
    (tmp_path / "late.py").write_text(LATE)
    process = subprocess.run(
        [sys.executable, "-m", "jaxkern", "profile", "--json", "late.py"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    result = json.loads(process.stdout)
    products = [op for op in result["ops"] if "dot_general" in op["scope"]]
    assert sum(op["calls"] for op in products) == 10
    assert not [op for op in result["ops"] if "profile_end" in op["program"]]
    assert result["wall_seconds"] > 0.5
    # As with Python, __file__ is absolute and sys.argv[0] is unchanged.
    assert f"file {tmp_path / 'late.py'} late.py" in process.stderr
    for text in ("late __main__ True", "pooled", "at exit"):
        assert text in process.stderr


def test_script_that_ends_without_its_exit_handlers(tmp_path, capfd, monkeypatch):
    script = tmp_path / "abrupt.py"
    script.write_text("import os\nos._exit(3)\n")
    monkeypatch.chdir(tmp_path)
    assert main(["profile", "--json", str(script)]) == 3
    assert "exit code 3" in capfd.readouterr().err


def test_few_rounds_have_no_interval(tmp_path, capsys):
    arguments = ["bench", "--case", "image-normalize", "--rounds", "4", "--output-dir"]
    arguments += [str(tmp_path)]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "nan" not in text
    assert " to " not in text.splitlines()[2]
    assert main([*arguments, "--baseline", str(tmp_path), "--json"]) == 0
    (case,) = json.loads(capsys.readouterr().out)["cases"]
    speedup, verdict = case["speedup"], case["verdict"]
    assert speedup["value"] > 0
    assert (speedup["low"], speedup["high"], speedup["samples"]) == (None, None, 4)
    assert (verdict["ratio"]["low"], verdict["outcome"]) == (None, "no difference shown")


WITHOUT_GPU = """\
import json, sys
from jaxkern.cli import main
for command in ("bench", "roofline", "device --measure", f"profile {__file__}"):
    command, *rest = command.split()
    assert main([command, "--json", *rest]) == 2
main(["device", "--json"])
main(["doctor", "--json"])
assert main(["doctor"]) == 1
"""


def test_missing_platform_is_named(tmp_path):
    """JAX raises an AssertionError without a text."""
    script = tmp_path / "commands.py"
    script.write_text(WITHOUT_GPU)
    process = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    errors = [line for line in process.stderr.splitlines() if line.startswith("error: ")]
    read = json.JSONDecoder().raw_decode
    status, end = read(process.stdout)
    rest = process.stdout[end:].strip()
    diagnosis, end = read(rest)
    assert "JAX cannot start its default backend" in rest[end:]
    assert len(errors) == 4
    for problem in (*errors, *status["status"]["problems"], diagnosis["problems"][0]):
        assert "JAX_PLATFORMS is 'cuda'" in problem
        assert "unset it" in problem
    assert status["status"]["default_backend"] == diagnosis["default_platform"] == "none"


def test_every_command_has_json(capsys):
    commands = ["bench", "roofline", "doctor", "device", "profile"]
    commands += ["xpcs simulate", "xpcs fit", "xpcs plot", "xpcs config"]
    commands += ["pack", "xpcs correlate", "xpcs watch", "xpcs check"]
    for command in commands:
        assert main([*command.split(), "--help"]) == 0
        assert "--json" in capsys.readouterr().out, command
