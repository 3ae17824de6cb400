"""Large results of native calls cost few page faults, in a process as users start it.

Would catch: a handler that writes its result without asking for huge pages, advice that comes after
the first write, and advice that a process without huge pages cannot do without.
"""

from __future__ import annotations

import json
from pathlib import Path

from support import SUPPORT
from support.core.processes import python_output

_MODES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_SCRIPT = SUPPORT / "core" / "faults_per_call.py"
_OPS = {"image_chain", "image_chain_ragged", "image_mix", "ring_pop"}
_OPS |= {f"two_time_{name}" for name in ("g2", "g2_tangent", "residual", "g2_at")}


def test_new_result_causes_few_page_faults():
    without = ("XLA_", "MALLOC_", "GLIBC_TUNABLES")
    code = f"import runpy; runpy.run_path({str(_SCRIPT)!r}, run_name='__main__')"
    result = json.loads(python_output(code, without=without, JAXKERN_BACKEND="native"))
    assert set(result) == _OPS
    allowed = _MODES.exists() and "[never]" not in _MODES.read_text()
    for name, counts in result.items():
        pages = counts["bytes"] / 4096
        # Pages of 4 KiB before the first whole huge page and after the last one, and some tables.
        assert counts["advised"] < 1700 or not allowed, f"{name}: {counts} of {pages:.0f}"
        assert pages * 0.9 < counts["never"] < pages * 1.4, f"{name}: {counts} of {pages:.0f}"
