"""What every domain stands on: the op recipe, the choice of backend, and the native libraries."""
