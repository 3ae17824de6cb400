"""How busy devices are, as their driver reports it through ``nvidia-smi``."""

from __future__ import annotations

import shutil
import subprocess
import threading
from typing import Self

import jax

_PERIOD_MS = 200


class DeviceSampler:
    """Samples the utilization of GPUs during a ``with`` block.

    Attributes:
      utilization: mean per cent by device, of every GPU that the driver shows; None where nothing
        was reported.
      note: why it is None, or how it was sampled.
    """

    def __init__(self) -> None:
        self.utilization: dict[str, float] | None = None
        self.note = ""

    def __enter__(self) -> Self:
        self._process: subprocess.Popen[str] | None = None
        self._lines: list[str] = []
        if jax.default_backend() != "gpu":
            self.note = f"not reported for {jax.default_backend()} devices"
            return self
        if (command := shutil.which("nvidia-smi")) is None:
            self.note = "not reported: nvidia-smi is not installed"
            return self
        self._process = subprocess.Popen(
            [
                command,
                "--query-gpu=index,utilization.gpu",
                "--format=csv,noheader,nounits",
                f"--loop-ms={_PERIOD_MS}",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        self._lines.extend(self._process.stdout)

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        self._process.terminate()
        self._process.wait()
        self._reader.join()
        self.utilization = means(self._lines)
        if self.utilization is None:
            self.note = "not reported: nvidia-smi gave no figure in that time"
        else:
            self.note = f"nvidia-smi, every {_PERIOD_MS} ms"


def means(lines: list[str]) -> dict[str, float] | None:
    """Means of the lines ``index, per cent``; a device that reports ``[N/A]`` is left out.

    >>> means(["0, 40", "1, [N/A]", "0, 60"])
    {'gpu 0': 50.0}
    """
    found: dict[str, list[float]] = {}
    for line in lines:
        index, _, text = line.partition(",")
        try:
            found.setdefault(f"gpu {int(index)}", []).append(float(text))
        except ValueError:
            continue
    return {name: sum(values) / len(values) for name, values in found.items() if values} or None
