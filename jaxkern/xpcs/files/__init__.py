"""Two-time correlations in files and arrays: what is read, prepared, simulated and written."""
