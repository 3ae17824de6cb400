"""Native kernels for JAX: fused image augmentation as XLA custom calls that behave like JAX."""

from jaxkern.core.backend import backend as backend
from jaxkern.core.cost import Cost as Cost
from jaxkern.core.op import Op as Op
from jaxkern.core import registry as _registry

_registry.load_own()
