"""From a settings file to results and plots, as run by `python -m jaxkern xpcs`."""
