"""Random keys that belong to a record, not to its place in a batch."""

from jaxkern.core.keys import record_keys as record_keys

__all__ = ["record_keys"]
