"""Native computation of an image's parameters, from JAX functions of one image."""
