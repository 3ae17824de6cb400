"""The NumPy oracle of the image tests, and comparisons with it."""
