"""Packed files (.jkp), as they are read."""
