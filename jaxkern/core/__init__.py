"""Foundation of all domains: the op recipe, the choice of backend, and the native libraries."""
