"""Options, errors and JSON that several commands share."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterable, Sequence
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


def choice(name: str, values: str, help: str, default: str | None = None) -> Callable[[F], F]:
    """Return an option with one of the ``values``, which are separated by bars."""
    kind = click.Choice(values.split("|"))
    return click.option(name, type=kind, help=help, default=default, show_default=bool(default))


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


class Command(click.Command):
    """A command whose expected errors are one line on standard error; --json implies --quiet."""

    extra = "cli"  # the extra of pip that installs what the command needs

    def invoke(self, context: click.Context) -> Any:
        from jaxkern.core.failures import notes_of
        from jaxkern.core.registry import load_own

        load_own()
        if context.params.get("as_json") and "quiet" in context.params:
            context.params["quiet"] = True
        try:
            return super().invoke(context)
        except KeyboardInterrupt as error:
            # The last note of `pack` is the number of records after which the same call resumes.
            print(": ".join(["interrupted", *notes_of(error)[-1:]]), file=sys.stderr)
            return INTERRUPTED
        except Exception as error:
            if not self.is_expected(error):
                raise
            # The notes of `pack` name the record that failed.
            return print_error(error, notes_of(error) if self.name == "pack" else ())

    def is_expected(self, error: Exception) -> bool:
        """Return True for an error of the command's input or its environment."""
        from jaxkern.core.client import BackendError

        if isinstance(error, ModuleNotFoundError) and error.name:
            package = error.name.partition(".")[0]
            error.msg = f"{package} is not installed; pip install 'jaxkern-native[{self.extra}]'"
            return package != "jaxkern"
        return isinstance(error, (ValueError, OSError, MemoryError, ImportError, BackendError))


def print_error(error: BaseException, notes: Sequence[str] = ()) -> int:
    """Print an error and return its exit code: 1 for a failing disk, 2 for invalid input."""
    print("\n".join([f"error: {error}", *notes]), file=sys.stderr)
    return 1 if isinstance(error, OSError) and error.errno in _DISK_ERRORS else 2


def check_new(path: Path, force: bool, inputs: Iterable[Path | None] = ()) -> Path:
    """Return the path of a file to write, unless it is an input or exists without --force."""
    if path.exists():
        if any(file is not None and file.exists() and file.samefile(path) for file in inputs):
            raise ValueError(f"--output {path} is one of the files that are read")
        if not force:
            raise FileExistsError(f"{path} exists already; --force replaces it")
    return path


def check_plot(plot: Path | None) -> None:
    """Check that a plot can be drawn, before any work is done for it."""
    if plot is not None:
        from matplotlib.backend_bases import FigureCanvasBase

        suffixes = FigureCanvasBase.get_supported_filetypes()
        if plot.suffix.removeprefix(".").lower() not in suffixes:
            raise ValueError(f"--plot: expected a file of {', '.join(suffixes)}, got {plot}")


def print_json(record: Any) -> None:
    """Print a record as JSON, with null for NaN."""
    from jaxkern.benchmarking.saved import json_text

    print(json_text(record))
