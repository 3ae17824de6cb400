"""The command line, ``python -m jaxkern``."""

from __future__ import annotations

import argparse

from jaxkern.cli import xpcs


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the process's exit code."""
    parser = argparse.ArgumentParser(prog="python -m jaxkern", description="Native kernels for JAX")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "doctor",
        help="tell which kernels are used here and why; exits with 1 when the default platform "
        "runs any op in pure JAX",
    )
    xpcs.add_parser(commands)
    chosen = parser.parse_args(arguments)
    if chosen.command == "xpcs":
        return xpcs.run(chosen)

    from jaxkern.core.doctor import doctor

    diagnosis = doctor()
    print(diagnosis)
    return 0 if diagnosis.ok else 1
