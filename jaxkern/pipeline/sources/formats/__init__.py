"""Sources for file formats and data set libraries."""
