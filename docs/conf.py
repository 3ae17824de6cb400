"""Settings of the documentation: `make docs` writes it to build/docs, warnings are errors."""

import importlib
import re
from importlib import metadata
from pathlib import Path
from types import ModuleType

import jupytext

project = "jaxkern"
author = "the jaxkern authors"
copyright = f"2026, {author}"
release = metadata.version("jaxkern-native")
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"jaxkern {release}"
html_static_path = ["_static"]
html_css_files = ["phone.css"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
autosummary_generate = False
maximum_signature_line_length = 70
default_role = "py:obj"  # `name` in a docstring is a link
napoleon_google_docstring = True
napoleon_numpy_docstring = False

# Pages of the API reference: each module with the page that explains it.
MODULES = {
    "jaxkern": "../../how-to/write-an-op.md",
    "jaxkern.image": "../../how-to/augment-images.md",
    "jaxkern.pipeline": "../../how-to/build-pipelines.md",
    "jaxkern.tokens": "../../how-to/pack-tokens.md",
    "jaxkern.ring": "../../how-to/use-a-ring.md",
    "jaxkern.random": "../transforms.md#determinism",
    "jaxkern.xpcs": "../../how-to/analyse-a-measurement.md",
    "jaxkern.execution": "../../how-to/run-graphs.md",
    "jaxkern.performance": "../../how-to/speed-up-programs.md",
    "jaxkern.benchmarking": "../../how-to/benchmark.md",
    "jaxkern.device": "../../how-to/select-a-device.md",
    "jaxkern.testing": "../../how-to/write-an-op.md#the-test",
}


def users(module: str, name: str, code: dict[str, str]) -> list[str]:
    """Return at most four pages whose Python code uses a public name."""
    short = module.removeprefix("jaxkern").removeprefix(".")
    used = rf"\b(?:jk|jaxkern)\.(?:{short}\.)?{name}\b" + (
        rf"|\b{short}\.{name}\b" if short else ""
    )
    if name[0].isupper():
        used += rf"|\b{name}\b"
    return [page for page, text in code.items() if re.search(used, text)][:4]


def write_api(_) -> None:
    """Write a page for each module: tables of its public names, then their docstrings."""
    docs = Path(__file__).parent
    folder = docs / "reference" / "api"
    folder.mkdir(exist_ok=True)
    pages = [page for page in sorted(docs.rglob("*.md"), reverse=True) if page.parent != folder]
    blocks = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
    code = {
        f"/{page.relative_to(docs).with_suffix('')}": "".join(blocks.findall(page.read_text()))
        for page in pages
    }
    described: dict[int, str] = {}
    # The names that jaxkern re-exports are described by the module that defines them.
    for name in sorted(MODULES, key=lambda name: name == "jaxkern"):
        module = importlib.import_module(name)
        groups: dict[str, list[str]] = {}
        constants, elsewhere = [], []
        for public in module.__all__:
            value = getattr(module, public)
            if isinstance(value, ModuleType):
                continue
            if callable(value) and id(value) in described:
                elsewhere.append(f"`{public}`: {{py:obj}}`{described[id(value)]}`")
                continue
            described[id(value)] = f"{name}.{public}"
            if not callable(value):
                constants.append(public)
                continue
            path = value.__module__
            parts = path.removeprefix(name).split(".") if path.startswith(name) else []
            group = parts[2 if parts[1:2] == ["transforms"] else 1] if len(parts) > 2 else ""
            groups.setdefault(group, []).append(public)
        lines = [f"# {name}", "", f"```{{eval-rst}}\n.. automodule:: {name}\n   :no-index:\n```"]
        lines += ["", f"See also: [how it is used]({MODULES[name]})."]
        for group, names in sorted(groups.items()):
            title = {"onetime": "One-time g2"}.get(group, group.capitalize())
            lines += ["", f"## {title}" if title else "## General", "", "```{eval-rst}"]
            lines += [f".. currentmodule:: {name}", "", ".. autosummary::", "   :nosignatures:", ""]
            lines += [f"   {public}" for public in names]
            lines += ["```"]
        if elsewhere:
            lines += ["", "## Names of other modules", "", *(f"- {text}" for text in elsewhere)]
        lines += ["", "## Descriptions", "", "```{eval-rst}", f".. currentmodule:: {name}"]
        for names in groups.values():
            for public in names:
                kind = "class" if isinstance(getattr(module, public), type) else "function"
                lines += ["", f".. auto{kind}:: {public}"]
                if kind == "class":
                    lines += ["   :members:"]
                if shown := users(name, public, code):
                    links = ", ".join(f":doc:`{page}`" for page in shown)
                    lines += ["", f"   .. seealso:: {links}"]
        lines += [f"\n.. autodata:: {public}" for public in constants]
        lines += ["```", ""]
        (folder / f"{name}.md").write_text("\n".join(lines))


def write_settings(_) -> None:
    """Write the template of the settings of fits, which a page shows."""
    template = importlib.import_module("jaxkern.xpcs").template()
    (Path(__file__).parent / "reference" / "fit-settings.yaml").write_text(template)


def write_notebook(app, page: str, source: list[str]) -> None:
    """Write a tutorial as a notebook, and link to it from the page."""
    if not page.startswith("tutorials/"):
        return
    text = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", source[0])  # links lead to other pages
    flags = re.DOTALL | re.MULTILINE
    text = re.sub(r"^```\{image\}.*?^```\n", "", text, flags=flags)
    text = re.sub(r"^```\{\w+\} [./]*(\S+)\n.*?^```", r"See `\1`.", text, flags=flags)
    notebook = jupytext.reads(text.replace("```sh\n", "```text\n"), "md")
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    path = Path(app.srcdir, f"{page}.ipynb")
    jupytext.write(notebook, path)
    title, rest = source[0].split("\n", 1)
    source[0] = f"{title}\n\n{{download}}`Download as a notebook <{path.name}>`\n{rest}"


def setup(app) -> None:
    app.connect("builder-inited", write_api)
    app.connect("builder-inited", write_settings)
    app.connect("source-read", write_notebook)
