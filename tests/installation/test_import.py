"""Would catch an import of a domain or of another package by `import jaxkern`."""

import subprocess
import sys


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
