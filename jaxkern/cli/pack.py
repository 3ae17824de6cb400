"""``python -m jaxkern pack``: writes packed files, and tells what they hold and whether whole."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from jaxkern.cli.output import print_json
from jaxkern.core.progress import ProgressBar


def add_parser(commands: Any) -> None:
    """Adds the ``pack`` command."""
    about = "pack records into one file, or look at packed files; exits with 1 where one is damaged"
    parser = commands.add_parser("pack", help=about, description=about)
    parser.add_argument(
        "source",
        nargs="?",
        help="a folder with a subfolder of images for each class, or a file "
        "or pattern of files that from_source takes",
    )
    parser.add_argument("path", nargs="?", type=Path, help="the file to write, NAME.jkp")
    looks = parser.add_mutually_exclusive_group()
    looks.add_argument("--info", metavar="FILE", help="tell what a packed file or a set holds")
    looks.add_argument("--verify", metavar="FILE", help="read every record and name damaged ones")
    parser.add_argument(
        "--format",
        default="jpeg:90",
        metavar="FORMAT",
        help="jpeg:QUALITY, raw (decoded images) or npy (arrays as they are); default jpeg:90",
    )
    parser.add_argument("--max-side", type=int, metavar="N", help="resize what has a longer side")
    parser.add_argument("--shards", type=int, metavar="N", help="write N files")
    parser.add_argument("--threads", type=int, metavar="N", help="that read and encode")
    parser.add_argument(
        "--channels",
        type=int,
        choices=(1, 3, 4),
        default=3,
        help="of a folder's images: gray, RGB (default) or RGBA",
    )
    parser.add_argument(
        "--on-bad-record",
        choices=("raise", "mask"),
        default="raise",
        help="a file that does not decode: an error (default), or zeros with valid=False",
    )
    parser.add_argument("--force", action="store_true", help="replace files that are there")
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no report")


def run(chosen: argparse.Namespace) -> int:
    """Packs, or looks; errors of input are for the caller."""
    looked_at = chosen.info or chosen.verify
    if looked_at:
        if chosen.source or chosen.path:
            raise ValueError("--info and --verify take one FILE, and nothing is packed with them")
        return _info(chosen) if chosen.info else _verify(chosen)
    if chosen.path is None:
        raise ValueError("wanted SOURCE and NAME.jkp, or --info FILE, or --verify FILE")
    return _pack(chosen)


def _pack(chosen: argparse.Namespace) -> int:
    from jaxkern.pipeline import ImageFolder, pack
    from jaxkern.pipeline.sources.as_source import SUFFIXES, as_source
    from jaxkern.pipeline.sources.files import suffix_of

    source: Any = chosen.source
    if Path(source).is_dir() and suffix_of(source) not in SUFFIXES:  # a Zarr group is a folder
        try:
            source = ImageFolder(source, chosen.channels, on_bad_record=chosen.on_bad_record)
        except FileNotFoundError as error:
            kinds = {suffix_of(path) for path in Path(source).iterdir()} & SUFFIXES.keys()
            if not kinds:
                raise
            given = " or ".join(repr(str(Path(source) / f"*{kind}")) for kind in sorted(kinds))
            raise ValueError(f"{error}; it holds other files: give {given}") from error
    try:
        source = as_source(source)
    except TypeError as error:  # of what is neither a folder nor a file of a known kind
        raise ValueError(str(error)) from error
    paths = pack(
        source,
        chosen.path,
        format=chosen.format,
        max_side=chosen.max_side,
        shards=chosen.shards,
        threads=chosen.threads,
        overwrite=chosen.force,
        progress=not (chosen.quiet or chosen.json),
    )
    size = sum(path.stat().st_size for path in paths)
    if chosen.json:
        print_json({"files": paths, "records": len(source), "bytes": size})
    elif not chosen.quiet:
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        print(f"wrote {paths[0]}{more}: {len(source):,} records, {size / 1e6:,.1f} MB")
    return 0


def _info(chosen: argparse.Namespace) -> int:
    from jaxkern.pipeline import PackedSource

    with PackedSource(chosen.info) as source:
        found = source.info()
    if chosen.json:
        print_json(found)
        return 0
    files = len(found["files"])
    print(
        f"{files} file{'s' * (files != 1)}, {found['records']:,} records, {found['bytes']:,} bytes"
    )
    for name, value in found["metadata"].items():
        text = ", ".join(value) if isinstance(value, list) else value
        print(f"{name}: {text!s:.200}")
    for field in found["fields"]:
        print(f"field {field['name']}: {field['codec']}, {field['dtype']}{field['shapes']}, "
              f"{field['bytes']:,} bytes")  # fmt: skip
    return 0


def _verify(chosen: argparse.Namespace) -> int:
    from jaxkern.pipeline import PackedSource

    shown = not (chosen.quiet or chosen.json)
    with PackedSource(chosen.verify) as source, ProgressBar(shown, "verifying", "records") as bar:
        bar.update(total=len(source))
        damaged = list(source.damaged(lambda done: bar.update(done=done)))
        records = len(source)
    if chosen.json:
        print_json({"records": records, "damaged": [damage._asdict() for damage in damaged]})
    else:
        for damage in damaged:
            print(damage)
        if not chosen.quiet:
            print(f"{len(damaged)} of {records:,} records are damaged")
    return 1 if damaged else 0
