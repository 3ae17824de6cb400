"""Detector data: frames or events from files, and maps of pixels to bins."""
