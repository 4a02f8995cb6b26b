"""How Sphinx builds the documentation; see doc/source/index.rst."""

from retryflow.conf.backend import select_threading

# The configuration reference imports the libraries whose options it lists.
select_threading()

import retryflow

project = "retryflow"
author = "the retryflow authors"
copyright = "the retryflow authors, Apache License 2.0"
version = release = retryflow.__version__

extensions = ["oslo_config.sphinxext", "sphinx.ext.autodoc"]
root_doc = "index"
nitpicky = False
highlight_language = "none"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"

html_theme = "alabaster"
html_theme_options = {
    "description": "Retries, recovery and graceful shutdown for Oslo-style task services",
    "fixed_sidebar": True,
    "page_width": "1100px",
    "sidebar_width": "240px",
    "show_powered_by": False,
}
html_sidebars = {"**": ["about.html", "searchfield.html", "navigation.html"]}
html_show_sourcelink = False
