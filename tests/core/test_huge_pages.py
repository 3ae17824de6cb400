"""Large results of native calls cost few page faults, in a process as users start it.

Would catch: a handler that writes its result without asking for huge pages, advice that comes after
the first write, and advice that a process without huge pages cannot do without.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from support import SUPPORT

_MODES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_SCRIPT = SUPPORT / "core" / "faults_per_call.py"
_OPS = {
    "image_chain",
    "image_chain_ragged",
    "image_mix",
    "two_time_g2",
    "two_time_g2_tangent",
    "two_time_residual",
    "two_time_g2_at",
    "ring_pop",
}


def test_a_fresh_result_costs_few_faults():
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("XLA_", "MALLOC_"))}
    environment.pop("GLIBC_TUNABLES", None)
    done = subprocess.run(
        [sys.executable, str(_SCRIPT)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=environment | {"JAXKERN_BACKEND": "native"},
    )
    result = json.loads(done.stdout)
    assert set(result) == _OPS
    allowed = _MODES.exists() and "[never]" not in _MODES.read_text()
    for name, counts in result.items():
        pages = counts["bytes"] / 4096
        # Pages of 4 KiB before the first whole huge page and after the last one, and some tables.
        assert counts["advised"] < 1700 or not allowed, f"{name}: {counts} of {pages:.0f}"
        assert pages * 0.9 < counts["never"] < pages * 1.4, f"{name}: {counts} of {pages:.0f}"
