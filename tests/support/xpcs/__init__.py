"""Oracles, simulated measurements, files and programs of the XPCS tests."""
