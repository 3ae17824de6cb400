"""``check_op``: puts anybody's op through everything that the recipe promises."""

from jaxkern.testing.check import OpCheck as OpCheck
from jaxkern.testing.check import check_op as check_op

__all__ = ["OpCheck", "check_op"]
