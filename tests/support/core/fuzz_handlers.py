"""Calls every FFI target with invalid arguments, in a process of test_handler_fuzz.py.

``python fuzz_handlers.py LOG brief|long SEED COUNT``: all changes of each attribute, then COUNT
random changes per target. LOG ends with the call that was running when the process died.
"""

from __future__ import annotations

import random
import sys
import warnings

import jaxkern as jk
from support.core import handler_calls


def main(log: str, extent: str, seed: int, count: int) -> None:
    draw = random.Random(seed)
    targets: set[str] = set()
    with open(log, "w", buffering=1) as running:

        def check(call: handler_calls.HandlerCall) -> str | None:
            running.write(f"{call}\n")
            error = call.run()
            name = call.target.rpartition(".v")[0]
            if error is not None and f"{name}: " not in error and call.target not in error:
                raise AssertionError(f"the error does not name {name}: {error}\n{call}")
            return error

        for call in handler_calls.valid_calls(every_case=extent == "long"):
            error = check(call)
            if error is not None:
                raise AssertionError(f"a valid call failed: {error}\n{call}")
            if call.target not in targets:
                for changed in handler_calls.attribute_changes(call, brief=extent == "brief"):
                    check(changed)
            targets.add(call.target)
            for _ in range(count):
                check(handler_calls.random_change(call, draw))
    missing = set(jk.export_targets()) - targets
    if missing:
        raise AssertionError(
            f"no valid call of {sorted(missing)} is known; add a row to recipe_cases.py"
        )
    print("targets:", len(targets))


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # casts of hostile values
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
