"""Two-time correlations and results in files and arrays: reading, preparation, simulation."""
