"""``check_op``: tests all guarantees of the op recipe for an op."""

from jaxkern.testing.check import OpCheck as OpCheck
from jaxkern.testing.check import check_op as check_op

__all__ = ["OpCheck", "check_op"]
