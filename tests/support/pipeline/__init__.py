"""Sources, cases and programs of the pipeline tests."""
