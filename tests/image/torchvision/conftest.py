"""torchvision, for the tests that compare with it."""

from __future__ import annotations

import sys

import pytest
import torch

# C++ operators for which torchvision registers shape rules when it is imported.
OPERATORS = (
    "nms qnms roi_align _roi_align_backward qroi_align ps_roi_align _ps_roi_align_backward "
    "roi_pool _roi_pool_backward ps_roi_pool _ps_roi_pool_backward deform_conv2d "
    "_deform_conv2d_backward"
)


def load_v2():
    """torchvision.transforms.v2; its C++ operators need not match the installed torch."""
    try:
        from torchvision.transforms import v2 as module
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in OPERATORS.split():
            library.define(f"{name}() -> Tensor")
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        from torchvision.transforms import v2 as module

        module.declared_operators = library  # keeps the declarations alive
    return module


@pytest.fixture(scope="session")
def v2():
    return load_v2()
