"""A self-contained HTML page of text, tables and figures."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxkern.core.paths import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
body { max-width: 1150px; margin: 0 auto; padding: 0 16px 48px; color: #222; background: #fff;
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5em; margin-bottom: 0; } h2 { font-size: 1.15em; margin: 2em 0 .5em; }
.wide { overflow-x: auto; margin: .5em 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: 3px 12px 3px 0; text-align: left; border-bottom: 1px solid #ddd;
  white-space: nowrap; vertical-align: top; }
td.long { white-space: normal; min-width: 16em; }
figure { margin: 1em 0; } figcaption { color: #555; font-size: .9em; } img { max-width: 100%; }
ul.remarks { background: #fff6e0; border-left: 4px solid #e0a000; padding: .6em 1em .6em 2em; }
pre { background: #f5f5f5; padding: 12px; overflow-x: auto; font-size: 13px; }
@media (max-width: 600px) { .wide img { max-width: none; width: 680px; } }
"""


class Page:
    """Collects the parts of a page in order; all text is escaped."""

    def __init__(self, title: str, summary: str) -> None:
        self._title = title
        self._parts = [f"<h1>{html.escape(title)}</h1>", f"<p>{html.escape(summary)}</p>"]

    def heading(self, text: str) -> None:
        """Begin a section."""
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self._parts.append(f"<p>{html.escape(text)}</p>")

    def remarks(self, lines: Iterable[str]) -> None:
        """Add a highlighted list, unless it is empty."""
        items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
        if items:
            self._parts.append(f'<ul class="remarks">{items}</ul>')

    def table(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add a table with the keys of the first row as titles of the columns."""
        if not rows:
            return
        head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
        lines = "".join(f"<tr>{''.join(map(_cell, row.values()))}</tr>" for row in rows)
        self._parts.append(f'<div class="wide"><table><tr>{head}</tr>{lines}</table></div>')

    def values(self, values: Mapping[str, Any]) -> None:
        """Add a table with a name and a value in each row."""
        lines = "".join(
            f"<tr><th>{html.escape(name)}</th>{_cell(value)}</tr>" for name, value in values.items()
        )
        self._parts.append(f'<div class="wide"><table>{lines}</table></div>')

    def figure(self, figure: Figure, caption: str) -> None:
        """Add a figure as an image."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        figure.set_dpi(110)
        file = io.BytesIO()
        FigureCanvasAgg(figure).print_png(file)
        data = base64.b64encode(file.getvalue()).decode()
        caption = html.escape(caption)
        self._parts.append(
            f'<figure><div class="wide"><img alt="{caption}" src="data:image/png;base64,{data}">'
            f"</div><figcaption>{caption}</figcaption></figure>"
        )

    def code(self, title: str, text: str) -> None:
        """Add text that opens with a click on its title."""
        shown = f"<summary>{html.escape(title)}</summary><pre>{html.escape(text)}</pre>"
        self._parts.append(f"<details>{shown}</details>")

    def write(self, path: Path) -> Path:
        """Write the page atomically, and return the path."""
        head = (
            '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"<title>{html.escape(self._title)}</title><style>{_STYLE}</style>"
        )
        body = "\n".join(["<body>", *self._parts, "</body></html>\n"])
        page = f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n{body}'
        write_atomically(path, page.encode())
        return path


def _cell(value: Any) -> str:
    if isinstance(value, float):
        value = f"{value:.5g}"
    text = "" if value is None else str(value)
    return f"<td{' class=long' if len(text) > 60 else ''}>{html.escape(text)}</td>"
