"""The command line, ``python -m jaxkern``, also installed as ``jaxkern``."""

from __future__ import annotations

import sys

from jaxkern.core.version import __version__


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit code: 0, 1 for a negative result, 2 for invalid input.

    Args:
      arguments: command-line arguments without the program's name; None uses ``sys.argv``.
    """
    words = sys.argv[1:] if arguments is None else arguments
    if words == ["--version"]:  # without importing the commands
        print(f"jaxkern, version {__version__}")
        return 0
    try:
        import click
    except ImportError:
        # `doctor` must work in every installation, without the parser library.
        if words in (["doctor"], ["doctor", "--json"]):
            return run_doctor(as_json="--json" in words)
        print(
            "error: the command line (except for doctor) needs click, which is not installed: "
            "pip install 'jaxkern-native[cli]'",
            file=sys.stderr,
        )
        return 2
    from jaxkern.cli.commands import cli

    try:
        return int(cli.main(arguments, "jaxkern", standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        return error.exit_code


def run_doctor(as_json: bool) -> int:
    """Print the diagnosis; return 1 if an op runs in pure JAX on the default platform."""
    from jaxkern.benchmarking.saved import json_text
    from jaxkern.core.registry import load_own
    from jaxkern.device.status import doctor

    load_own()
    diagnosis = doctor()
    print(json_text(diagnosis.as_dict()) if as_json else diagnosis)
    return 0 if diagnosis.ok else 1
