"""``python -m jaxkern xpcs check``: tells whether files of XPCS data are damaged."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from jaxkern.cli.output import print_json


def add_parser(actions: Any) -> None:
    """Adds the command to those of ``xpcs``."""
    about = (
        "read files of frames, bins, correlations or results in a process of their own; exits "
        "with 1 when one is damaged, also when it crashes HDF5's library"
    )
    check = actions.add_parser("check", help=about, description=about)
    check.add_argument("files", type=Path, nargs="+", help="the files")
    check.add_argument(
        "--frame-shape", metavar="H,W", help="of frames or events that do not say it"
    )
    check.add_argument("--dataset", metavar="NAME", help="of an HDF5 file; default: looked for")
    check.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    check.add_argument("--quiet", action="store_true", help="print damaged files only")


def check(chosen: argparse.Namespace) -> int:
    """Reads the files; errors of input are for the caller."""
    from jaxkern.xpcs.analysis.checking import check_file

    shape = None
    if chosen.frame_shape is not None:
        match = re.fullmatch(r"\s*([0-9]{1,9})\s*[,x]\s*([0-9]{1,9})\s*", chosen.frame_shape)
        if match is None:
            raise ValueError(f"--frame-shape is {chosen.frame_shape!r:.40}; expected H,W: 512,1024")
        shape = (int(match[1]), int(match[2]))
    found = []
    for file in chosen.files:
        found.append(check_file(file, shape, chosen.dataset))
        if chosen.json:
            continue
        if found[-1].error is not None:
            print(f"{file}: damaged: {found[-1].error}", flush=True)
        elif not chosen.quiet:
            print(f"{file}: no damage found; {found[-1].holds}", flush=True)
    damaged = [one for one in found if one.error is not None]
    if chosen.json:
        print_json({"files": [vars(one) for one in found], "damaged": len(damaged)})
    return 1 if damaged else 0
