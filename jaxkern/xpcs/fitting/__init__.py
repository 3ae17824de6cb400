"""Fits in constant memory: the data's passes, the solver, errors, checkpoints, results."""
