"""What the commands print: a table for people, or JSON for programs."""

from __future__ import annotations

import errno
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class MissingExtraError(Exception):
    """A package that a command needs is not installed; the message says which extra has it."""


def check_output(json: bool, plot: Path | None) -> None:
    """Raises what `print_table` and `bar_chart` would, before any work is done for them.

    Raises:
      MissingExtraError: rich or matplotlib is wanted and not installed.
      ValueError: matplotlib does not know the plot's suffix.
    """
    if not json:
        _require("rich", "tables need rich, which is not installed: pip install 'jaxkern[cli]'; "
                 "--json does not")  # fmt: skip
    if plot is None:
        return
    _require(
        "matplotlib",
        "--plot needs matplotlib, which is not installed: pip install 'jaxkern[cli]'",
    )
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if plot.suffix.removeprefix(".").lower() not in known:
        raise ValueError(f"--plot is {plot}; wanted a file that ends in .{', .'.join(known)}")


def _require(package: str, message: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(message) from error


# Of a disk that is full, over its quota or broken, as opposed to a wrong path.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def exit_code(error: BaseException) -> int:
    """The exit code of an error: 1 if the disk could not be written, 2 for wrong input."""
    return 1 if isinstance(error, OSError) and error.errno in _DISK else 2


def print_json(record: Any) -> None:
    from jaxkern.benchmarking.saved import json_text

    print(json_text(record))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on standard output; the first column is to the left, the others to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    console = Console()
    # Where nobody looks, as in a file, no cell is cut to the width of a terminal.
    if not console.is_terminal:
        console = Console(width=200)
    console.print(table)
