"""What ran when: the spans of operators, as a table and as a Chrome trace."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import threading
import time
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Span:
    """One call: times in seconds since the trace began."""

    index: int
    name: str
    #: "operator", "jit", "graph", "vmap", "pmap", or "item" of a map of Python work
    category: str
    start: float
    seconds: float
    thread: int
    thread_name: str
    #: the span that it was called in, perhaps of another thread
    parent: int | None
    depth: int
    error: str | None = None


class ExecutionTrace:
    """The spans of a block of `execution_options`, in the order in which they ended.

    ``str`` is a table; `save` writes what chrome://tracing and https://ui.perfetto.dev open.
    """

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._lock = threading.Lock()
        self._spans: list[Span] = []
        self._indices = itertools.count()

    @property
    def spans(self) -> list[Span]:
        """A copy, safe while others still add to it."""
        with self._lock:
            return list(self._spans)

    def begin(self, name: str, category: str, parent: Span | None) -> Span:
        """A span that starts now, in this thread."""
        thread = threading.current_thread()
        return Span(
            index=next(self._indices),
            name=name,
            category=category,
            start=time.perf_counter() - self._began,
            seconds=0.0,
            thread=thread.ident or 0,
            thread_name=thread.name,
            parent=None if parent is None else parent.index,
            depth=0 if parent is None else parent.depth + 1,
        )

    def end(self, span: Span, error: BaseException | None = None) -> None:
        """Adds the span, with its time."""
        seconds = time.perf_counter() - self._began - span.start
        name = None if error is None else type(error).__name__
        span = dataclasses.replace(span, seconds=seconds, error=name)
        with self._lock:
            self._spans.append(span)

    def rows(self) -> list[dict[str, Any]]:
        """Per name and category: calls, total and own seconds, and the longest call.

        Own is without the spans inside, which may have run at the same time as one another: it is
        the time during which none of them did.
        """
        spans = self.spans
        inside: dict[int | None, list[Span]] = {}
        alike: dict[tuple[str, str], list[Span]] = {}
        for span in spans:
            inside.setdefault(span.parent, []).append(span)
            alike.setdefault((span.name, span.category), []).append(span)
        rows = [
            {
                "name": name,
                "category": category,
                "calls": len(group),
                "seconds": sum(span.seconds for span in group),
                "own_seconds": sum(
                    span.seconds - _covered(span, inside.get(span.index, [])) for span in group
                ),
                "longest": max(span.seconds for span in group),
            }
            for (name, category), group in alike.items()
        ]
        return sorted(rows, key=lambda row: -row["seconds"])

    def chrome_trace(self) -> dict[str, Any]:
        """The spans as a Chrome trace: complete events, in microseconds."""
        process = os.getpid()
        spans = self.spans
        threads = {span.thread: span.thread_name for span in spans}
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": process, "tid": tid, "args": {"name": name}}
            for tid, name in threads.items()
        ]
        for span in sorted(spans, key=lambda span: span.start):
            arguments = {"index": span.index, "parent": span.parent, "depth": span.depth}
            if span.error is not None:
                arguments["error"] = span.error  # type: ignore[assignment]
            events.append(
                {
                    "ph": "X",
                    "name": span.name,
                    "cat": span.category,
                    "ts": span.start * 1e6,
                    "dur": span.seconds * 1e6,
                    "pid": process,
                    "tid": span.thread,
                    "args": arguments,
                }
            )
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def save(self, path: str | Path) -> Path:
        """Writes the Chrome trace as JSON."""
        path = Path(path)
        path.write_text(json.dumps(self.chrome_trace()))
        return path

    def __str__(self) -> str:
        rows = self.rows()
        width = max([len("operator"), *(len(row["name"]) for row in rows)])
        lines = [
            f"{'operator':{width}}  {'kind':8}  {'calls':>5}  {'total ms':>10}  {'own ms':>10}  "
            f"{'longest ms':>10}"
        ]
        for row in rows:
            lines.append(
                f"{row['name']:{width}}  {row['category']:8}  {row['calls']:5}  "
                f"{row['seconds'] * 1e3:10.3f}  {row['own_seconds'] * 1e3:10.3f}  "
                f"{row['longest'] * 1e3:10.3f}"
            )
        return "\n".join(lines)


def _covered(span: Span, inside: list[Span]) -> float:
    """Seconds of a span during which at least one of those inside ran."""
    total, reached, last = 0.0, span.start, span.start + span.seconds
    for child in sorted(inside, key=lambda child: child.start):
        begin = max(child.start, reached)
        end = min(child.start + child.seconds, last)
        if end > begin:
            total += end - begin
            reached = end
    return total
