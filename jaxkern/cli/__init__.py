"""The command line, ``python -m jaxkern``, also installed as ``jaxkern``."""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit code: 0, 1 for a negative result, 2 for invalid input.

    Args:
      arguments: command-line arguments without the program's name. None uses ``sys.argv``, and
        the process should exit afterwards.
    """
    try:
        import click
    except ImportError:
        return _main_without_click(sys.argv[1:] if arguments is None else arguments)
    from jaxkern.cli.commands import cli

    try:
        # `obj` is True if this process exits after the command.
        code = cli.main(arguments, "jaxkern", standalone_mode=False, obj=arguments is None)
        return int(code or 0)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort as abort:
        # A script that `profile` runs was interrupted with Ctrl-C.
        raise abort.__cause__ or abort from None


def _main_without_click(arguments: list[str]) -> int:
    """Run ``doctor``, which must work in every installation, without the parser library."""
    if arguments[:1] == ["doctor"] and arguments[1:] in ([], ["--json"]):
        return run_doctor(as_json=bool(arguments[1:]))
    print(
        "error: the command line (except for doctor) needs click, which is not installed: "
        "pip install 'jaxkern[cli]'",
        file=sys.stderr,
    )
    return 2


def run_doctor(as_json: bool) -> int:
    """Print the diagnosis; return 1 if an op runs in pure JAX on the default platform."""
    from jaxkern.benchmarking.saved import json_text
    from jaxkern.device.doctor import doctor

    diagnosis = doctor()
    if as_json:
        # A library's loaded module cannot be converted to JSON.
        libraries = [
            {k: v for k, v in vars(library).items() if k != "loaded"}
            for library in diagnosis.libraries
        ]
        print(json_text({"ok": diagnosis.ok, **vars(diagnosis), "libraries": libraries}))
    else:
        print(diagnosis)
    return 0 if diagnosis.ok else 1
