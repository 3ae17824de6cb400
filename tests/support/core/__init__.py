"""Calls of native handlers, cases of the op recipe, and programs of the core tests."""
