"""Sources of records: arrays, files and data sets."""
