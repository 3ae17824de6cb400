"""Packed files (.jkp), as they are written."""
