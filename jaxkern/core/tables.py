"""Tables of results as CSV, Parquet and pandas."""

from __future__ import annotations

import csv
import importlib
from pathlib import Path
from typing import Any

from jaxkern.core.paths import atomic_write

Row = dict[str, Any]


class Table:
    """Base class of results that have a table."""

    @property
    def table(self) -> list[Row]:
        """The rows; a column that a row does not have is empty there."""
        raise NotImplementedError

    def to_csv(self, path: str | Path) -> Path:
        """Write the table as CSV, atomically, and return the path."""
        rows = self.table
        with (
            atomic_write(Path(path)) as temporary,
            temporary.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.DictWriter(file, dict.fromkeys(name for row in rows for name in row))
            writer.writeheader()
            writer.writerows(rows)
        return Path(path)

    def to_parquet(self, path: str | Path) -> Path:
        """Write the table as Parquet, atomically, and return the path; ImportError without it."""
        arrow, parquet = import_pyarrow("pyarrow"), import_pyarrow("pyarrow.parquet")
        rows = self.table
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: [row.get(name) for row in rows] for name in names}
        with atomic_write(Path(path)) as temporary:
            parquet.write_table(arrow.table(columns), temporary)
        return Path(path)

    def to_dataframe(self) -> Any:
        """Return the table as a pandas DataFrame; ModuleNotFoundError without pandas."""
        import pandas

        return pandas.DataFrame(self.table)


def import_pyarrow(module: str) -> Any:
    """Import a module of pyarrow; ImportError with advice if it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(
            "pyarrow is missing; pip install 'jaxkern-native[parquet]', or use .csv"
        ) from error
