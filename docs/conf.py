"""Settings of the documentation: `make docs` writes it to build/docs, warnings are errors."""

from importlib import metadata

project = "jaxkern"
author = "the jaxkern authors"
release = metadata.version("jaxkern-native")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 2
html_theme = "furo"
html_title = f"jaxkern {release}"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
