"""The command line, ``python -m jaxkern``, installed also as ``jaxkern``."""

from __future__ import annotations

import argparse
import sys

from jaxkern.cli import bench, device, pack, profile, roofline, xpcs


def parser() -> argparse.ArgumentParser:
    """All commands and their arguments."""
    parser = argparse.ArgumentParser(prog="python -m jaxkern", description="Native kernels for JAX")
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser(
        "doctor",
        help="tell which kernels are used here and why; exits with 1 when the default platform "
        "runs any op in pure JAX",
    )
    doctor.add_argument("--json", action="store_true", help="print JSON")
    bench.add_parser(commands)
    roofline.add_parser(commands)
    device.add_parser(commands)
    profile.add_parser(commands)
    xpcs.add_parser(commands)
    pack.add_parser(commands)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the process's exit code, 2 for input that is wrong.

    Without ``arguments`` it takes the process's, which is to end then.
    """
    chosen = parser().parse_args(arguments)
    if chosen.command == "xpcs":
        return xpcs.run(chosen)
    if chosen.command == "doctor":
        return _doctor(chosen)
    from jaxkern.cli.output import MissingExtraError, check_output, exit_code
    from jaxkern.core.client import BackendError
    from jaxkern.core.failures import notes_of

    runs = {
        "bench": bench.run,
        "device": device.run,
        "pack": pack.run,
        "profile": profile.run,
        "roofline": roofline.run,
    }
    try:
        if chosen.command != "pack":  # which prints no table
            check_output(chosen.json, chosen.plot)
        code = runs[chosen.command](chosen)
        if arguments is None and chosen.command == "profile" and chosen.json:
            profile.end_stdout_at_exit()
        return code
    except KeyboardInterrupt as error:
        if chosen.command == "profile":  # of the script, whose errors are its tracebacks
            raise
        # The writer's note is the last: how many records the same call resumes from.
        print(": ".join(["interrupted", *notes_of(error)[-1:]]), file=sys.stderr)
        return 130
    except (ValueError, OSError, MissingExtraError, BackendError) as error:
        notes = notes_of(error) if chosen.command == "pack" else []
        print("\n".join([f"error: {error}", *notes]), file=sys.stderr)
        return exit_code(error)


def _doctor(chosen: argparse.Namespace) -> int:
    from jaxkern.device.doctor import doctor

    diagnosis = doctor()
    if chosen.json:
        from jaxkern.cli.output import print_json

        # A library's loaded module is nothing that JSON could hold.
        libraries = [
            {k: v for k, v in vars(library).items() if k != "loaded"}
            for library in diagnosis.libraries
        ]
        print_json({"ok": diagnosis.ok, **vars(diagnosis), "libraries": libraries})
    else:
        print(diagnosis)
    return 0 if diagnosis.ok else 1
