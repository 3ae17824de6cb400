"""The progress bar of long fits: passes and cost, and the chunks of the running pass."""

from __future__ import annotations

from jaxkern.core import progress


class FitProgress(progress.ProgressBar):
    """The bar of a fit."""

    def __init__(self, wanted: bool) -> None:
        super().__init__(wanted, "fit: pass 1", "chunk")

    def advance(self, done: int, total: int) -> None:
        """`done` of the `total` chunks of this pass are in."""
        self.update(done, total)

    def after_pass(self, number: int, cost: float) -> None:
        """Pass `number` is finished."""
        self.update(done=0, text=f"fit: pass {number + 1}, cost {cost:.6g}")

    def after_extra(self, number: int, total: int) -> None:
        """Pass `number` of the `total` for the errors is finished."""
        self.update(done=0, text=f"errors: pass {min(number + 1, total)} of {total}")
