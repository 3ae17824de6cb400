"""Augmentation policies and the tables they were published with."""
