"""Two processes in which peers work on halves of a batch, so that no interpreter holds up another.

What comes and goes are names and a batch in a file; only the result of one call, to be
checked, is sent whole. Run as a program this is one worker.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

WORKERS = 2


class NotThereError(RuntimeError):
    """A peer is not installed."""


class Workers:
    """Worker processes; a batch u8 [N, H, W, 3] is given to them once, and worked on by name."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self._processes = [
            subprocess.Popen(
                [sys.executable, __file__, self._folder.name, str(place)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # warnings of libraries; errors are answers
                env=environment,
            )
            for place in range(WORKERS)
        ]

    def give(self, images: np.ndarray) -> None:
        """The batch that following calls work on."""
        np.save(Path(self._folder.name) / "images.npy", images)
        self._all({"load": True})

    def has(self, peer: int, recipe: str) -> bool:
        """Prepare a recipe; return False if the peer lacks it, raise if it is not installed."""
        return all(self._all({"make": (peer, recipe)}, self._used(peer)))

    def run(self, peer: int, recipe: str) -> None:
        """Run the recipe on the batch, without transferring the results."""
        self._all({"run": (peer, recipe)}, self._used(peer))

    def result(self, peer: int, recipe: str, parameters: Any) -> np.ndarray:
        """Return the batch transformed with these parameters."""
        return np.concatenate(self._all({"check": (peer, recipe, parameters)}, self._used(peer)))

    def close(self) -> None:
        for process in self._processes:
            process.stdin.close()
            process.wait()
            process.stdout.close()
        self._folder.cleanup()

    def _used(self, peer: int) -> int:
        from policy_peers import PEERS

        return 1 if PEERS[peer][3] else WORKERS

    def _all(self, message: Any, workers: int = WORKERS) -> list[Any]:
        for process in self._processes[:workers]:
            pickle.dump(message, process.stdin)
            process.stdin.flush()
        answers = [pickle.load(process.stdout) for process in self._processes[:workers]]
        for answer in answers:
            if isinstance(answer, ImportError):
                raise NotThereError(str(answer)) from answer
            if isinstance(answer, str):
                raise RuntimeError(answer)
        return answers


def part(images: int, whole: bool, place: int) -> slice:
    """Which images a worker gets."""
    if whole:
        return slice(0, images)
    return slice(images * place // WORKERS, images * (place + 1) // WORKERS)


def worker(folder: Path, place: int, source: Any, sink: Any) -> None:
    """Answers messages until there are no more."""
    from policy_peers import PEERS

    made: dict[Any, Any] = {}
    images = np.empty(0)

    def answer(message: dict[str, Any]) -> Any:
        nonlocal images
        ((what, given),) = message.items()
        if what == "load":
            images = np.load(folder / "images.npy")
            return True
        peer, recipe, *more = given
        _, _, make, whole = PEERS[peer]
        mine = images[part(len(images), whole, place)]
        if what == "check":
            return np.asarray(
                make(recipe, _part_of(more[0], part(len(images), whole, place)))(mine)
            )
        if what == "make":
            made[peer, recipe] = make(recipe)
            return made[peer, recipe] is not None
        made[peer, recipe](mine)
        return True

    while True:
        try:
            message = pickle.load(source)
        except EOFError:
            return
        try:
            found = answer(message)
        except ImportError as error:
            found = ImportError(str(error))
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        pickle.dump(found, sink)
        sink.flush()


def _part_of(given: Any, images: slice) -> Any:
    """The parameters of some images: of arrays [N, ...] in dicts and lists."""
    if isinstance(given, dict):
        return {name: _part_of(value, images) for name, value in given.items()}
    if isinstance(given, list):
        return [_part_of(value, images) for value in given]
    return given[images] if isinstance(given, np.ndarray) else given


def main() -> None:
    # Output of libraries goes to stderr, not into the answers.
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    worker(Path(sys.argv[1]), int(sys.argv[2]), sys.stdin.buffer, sink)


if __name__ == "__main__":
    main()
