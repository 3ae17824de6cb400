"""``python -m jaxkern pack``: write, describe and verify packed files."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import click

from jaxkern.cli.output import PATH, Command, choice, combine, flag, json_option, option, print_json
from jaxkern.core.progress import ProgressBar


@click.command(cls=Command)
@combine(
    click.argument("source", required=False),
    click.argument("path", required=False, type=PATH),
    option("--info", "FILE", "Describe a packed file or a set of files."),
    option("--verify", "FILE", "Read every record and list damaged ones."),
    option("--format", "CODEC", "jpeg:QUALITY, raw (decoded) or npy (arrays).", default="jpeg:90"),
    option("--max-side", "N", "Resize images with a longer side.", int),
    option("--shards", "N", "Number of files to write.", int),
    option("--threads", "N", "Threads that read and encode.", int),
    choice("--channels", "1|3|4", "Gray, RGB or RGBA.", default="3"),
    choice("--on-bad-record", "raise|mask", "Error, or zeros with valid=False.", default="raise"),
    choice("--engine", "local|dask", "Shards: by this process, or on a Dask cluster."),
    option("--scheduler", "ADDRESS", "Shards: cluster or scheduler file; default local."),
    option("--workers", "N", "Shards: number of these processes.", int),
    click.option("--force", "overwrite", is_flag=True, help="Replace existing files."),
    json_option,
    flag("--quiet", "Print no progress bar and no report."),
)
def pack(
    source: str | None,
    path: Path | None,
    info: str | None,
    verify: str | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> int:
    """Pack the records of SOURCE into the file PATH, NAME.jkp.

    SOURCE is a directory with a subdirectory of images for each class, or a file or pattern of
    files that from_source accepts. Exits with 1 if --verify finds damaged records.
    """
    if info and verify:
        raise click.UsageError("--info and --verify are mutually exclusive.")
    if (info or verify) and (source or path):
        raise ValueError("--info and --verify: expected one FILE without SOURCE and PATH")
    if info:
        return _print_info(info, as_json)
    if verify:
        return _verify(verify, as_json, quiet)
    if source is None or path is None:
        raise ValueError("expected SOURCE and NAME.jkp, or --info FILE, or --verify FILE")
    return _pack(source, path, as_json, quiet, **options)


def _pack(
    name: str,
    path: Path,
    as_json: bool,
    quiet: bool,
    channels: str,
    on_bad_record: Any,
    engine: str,
    **more: Any,
) -> int:
    from jaxkern.pipeline import ImageFolder
    from jaxkern.pipeline import pack as write
    from jaxkern.pipeline.sources.as_source import SUFFIXES, as_source
    from jaxkern.pipeline.sources.files import suffix_of

    source: Any = name
    folder = functools.partial(
        ImageFolder, os.path.abspath(name), int(channels), on_bad_record=on_bad_record
    )
    if Path(name).is_dir() and suffix_of(name) not in SUFFIXES:  # a Zarr group is a directory
        try:
            source = folder()
        except FileNotFoundError as error:
            suffixes = {suffix_of(file) for file in Path(name).iterdir()} & SUFFIXES.keys()
            if not suffixes:
                raise
            patterns = " or ".join(repr(str(Path(name) / f"*{kind}")) for kind in sorted(suffixes))
            raise ValueError(f"{error}; for its other files pass {patterns}") from error
    try:
        source = as_source(source)
    except TypeError as error:  # neither a directory nor a file of a known format
        raise ValueError(str(error)) from error
    remote: Any = None if engine == "local" else engine
    opener = folder if isinstance(source, ImageFolder) else name
    paths = write(opener if remote else source, path, progress=not quiet, engine=remote, **more)
    size = sum(file.stat().st_size for file in paths)
    if as_json:
        print_json({"files": paths, "records": len(source), "bytes": size})
    elif not quiet:
        others = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        print(f"wrote {paths[0]}{others}: {len(source):,} records, {size / 1e6:,.1f} MB")
    return 0


def _print_info(file: str, as_json: bool) -> int:
    from jaxkern.pipeline import PackedSource

    with PackedSource(file) as source:
        info = source.info()
    if as_json:
        print_json(info)
        return 0
    counts = f"{info['records']:,} records, {info['bytes']:,} bytes"
    print(f"{len(info['files'])} files: {counts}")
    for name, value in info["metadata"].items():
        text = ", ".join(value) if isinstance(value, list) else value
        print(f"{name}: {text!s:.200}")
    for field in info["fields"]:
        kind = f"{field['codec']}, {field['dtype']}{field['shapes']}"
        print(f"field {field['name']}: {kind}, {field['bytes']:,} bytes")
    return 0


def _verify(file: str, as_json: bool, quiet: bool) -> int:
    from jaxkern.pipeline import PackedSource

    with PackedSource(file) as source, ProgressBar(not quiet, "verifying", "records") as bar:
        bar.update(total=len(source))
        damaged = list(source.damaged(lambda done: bar.update(done=done)))
        records = len(source)
    if as_json:
        print_json({"records": records, "damaged": [damage._asdict() for damage in damaged]})
    else:
        for damage in damaged:
            print(damage)
        if not quiet:
            print(f"{len(damaged)} of {records:,} records are damaged")
    return 1 if damaged else 0
