"""Random keys that depend on a record, not on its position in a batch."""

from jaxkern.core.keys import record_keys as record_keys

__all__ = ["record_keys"]
