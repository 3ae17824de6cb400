"""Options, errors, tables and JSON that several commands share."""

from __future__ import annotations

import errno
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)
INTERRUPTED = 130  # exit code after Ctrl-C: 128 + SIGINT
# Errors of a disk that is full, over its quota or broken; a wrong path is invalid input.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def option(name: str, metavar: str, help: str, type: Any = None, **more: Any) -> Callable[[F], F]:
    """Return an option with a value, whose help shows its default if it has one."""
    shown = more.get("default") is not None
    return click.option(name, metavar=metavar, help=help, type=type, show_default=shown, **more)


def flag(name: str, help: str) -> Callable[[F], F]:
    """Return an option without a value."""
    return click.option(name, is_flag=True, help=help)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def combine(*options: Callable[..., Any]) -> Callable[..., Any]:
    """Combine options into one decorator that adds them in this order."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


class MissingExtraError(Exception):
    """A package that a command needs is not installed; the message names the extra."""


class Command(click.Command):
    """A command whose expected errors are one line on standard error instead of a traceback."""

    def invoke(self, context: click.Context) -> Any:
        from jaxkern.core.client import BackendError
        from jaxkern.core.failures import notes_of

        try:
            return super().invoke(context)
        except KeyboardInterrupt as error:
            if self.name == "profile":  # the script's own traceback
                raise
            # The last note of `pack` is the number of records after which the same call resumes.
            print(": ".join(["interrupted", *notes_of(error)[-1:]]), file=sys.stderr)
            return INTERRUPTED
        except (ValueError, OSError, MissingExtraError, BackendError) as error:
            # The notes of `pack` name the record that failed.
            return print_error(error, notes_of(error) if self.name == "pack" else ())


def print_error(error: BaseException, notes: Sequence[str] = ()) -> int:
    """Print an error and return its exit code: 1 for a failing disk, 2 for invalid input."""
    print("\n".join([f"error: {error}", *notes]), file=sys.stderr)
    return 1 if isinstance(error, OSError) and error.errno in _DISK_ERRORS else 2


def check_output(has_table: bool, plot: Path | None) -> None:
    """Check that tables and plots can be made, before any work is done for them."""
    if has_table:
        _require("rich", "tables need rich, which is not installed: pip install 'jaxkern[cli]', or "
                 "use --json")  # fmt: skip
    if plot is None:
        return
    _require(
        "matplotlib", "--plot needs matplotlib, which is not installed: pip install 'jaxkern[cli]'"
    )
    from matplotlib.backend_bases import FigureCanvasBase

    suffixes = FigureCanvasBase.get_supported_filetypes()
    if plot.suffix.removeprefix(".").lower() not in suffixes:
        raise ValueError(
            f"--plot: expected a file that ends in .{', .'.join(suffixes)}, got {plot}"
        )


def _require(package: str, message: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(message) from error


def print_json(record: Any) -> None:
    """Print a record as JSON, with null for NaN."""
    from jaxkern.benchmarking.saved import json_text

    print(json_text(record))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; the first column is left-aligned, the others right-aligned."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    console = Console()
    # In a file no cell is cut to the width of a terminal.
    if not console.is_terminal:
        console = Console(width=200)
    console.print(table)
