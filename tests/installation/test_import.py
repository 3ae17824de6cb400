"""Would catch slow imports, and an installation over which another distribution has written.

`import jaxkern` imports no domain and no other package. The distribution `jaxkern` on the package
index installs a package of the same name.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import jaxkern


def test_import_adds_only_the_core():
    code = (
        "import sys, jax; before = set(sys.modules); import jaxkern;"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    added = done.stdout.split()
    own = {".".join(name.split(".")[:2]) for name in added if name.split(".")[0] == "jaxkern"}
    assert own - {"jaxkern._cpu", "jaxkern._cuda"} == {"jaxkern", "jaxkern.core"}
    # Modules of JAX and of the standard library are imported, but no other package.
    foreign = {name.split(".")[0] for name in added} - set(sys.stdlib_module_names)
    assert foreign <= {"jax", "jaxlib", "jaxkern", "nanobind"}
    assert len(added) < 60, f"{len(added)} modules more than JAX imports"


@pytest.mark.parametrize("replaced", [False, True])
def test_another_distribution_in_the_same_folder_is_an_error(tmp_path, replaced):
    """Also if that distribution was installed last and has replaced ``__init__.py``."""
    (tmp_path / "jaxkern").mkdir()
    # An editable installation has two folders.
    for path in (path for folder in jaxkern.__path__ for path in Path(folder).iterdir()):
        if not (tmp_path / "jaxkern" / path.name).exists():
            (tmp_path / "jaxkern" / path.name).symlink_to(path)
    if replaced:
        (tmp_path / "jaxkern" / "__init__.py").unlink()
        (tmp_path / "jaxkern" / "__init__.py").write_text("__version__ = '0.0.5'")
    code = "import sys; sys.path.insert(0, sys.argv[1]); import jaxkern.image"
    # -S: no finder of an editable installation.
    command = [sys.executable, "-S", "-c", code, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert subprocess.run(command, env=environment).returncode == 0
    (tmp_path / "jaxkern-0.0.5.dist-info").mkdir()
    assert subprocess.run(command, env=environment).returncode == 0  # the rest of an installation
    (tmp_path / "jaxkern-0.0.5.dist-info" / "RECORD").touch()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "ImportError" in done.stderr
    assert "jaxkern-0.0.5" in done.stderr
    assert "pip uninstall jaxkern jaxkern-native" in done.stderr
