"""From a settings file to results and plots: what `python -m jaxkern xpcs` runs."""
