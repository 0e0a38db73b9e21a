"""`mmspec recommend index`: a catalogue in one file that processes map into memory and share."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.commands import common
from mmspec.utils.places import Writes

EXAMPLES = """Examples:

\b
  mmspec recommend index shop/                                        # shop/catalogue.safetensors, which every command then maps
  mmspec recommend index catalogue.parquet catalogue.safetensors
"""


def index(
    source: Annotated[str, typer.Argument(help="A folder with catalogue.parquet, or a catalogue's Parquet file.", metavar="CATALOGUE")],
    out: Annotated[
        str | None, typer.Argument(help="A file *.safetensors; beside the catalogue by default.", metavar="FILE"), Writes()
    ] = None,
    as_json: common.JSON = False,
    verbose: common.VERBOSE = False,
) -> None:
    """Write items, paths and trie into one file. Jobs map it: they begin at once, and share its memory."""
    common.begin(verbose)
    from mmspec.recsys.preparation.mapped_folder import CATALOGUE, MAPPED, write_mapped_copy

    table = Path(source) / CATALOGUE if Path(source).is_dir() else Path(source)
    mapped = table.parent / MAPPED if out is None else Path(out)
    if mapped.suffix != ".safetensors":
        raise ValueError(f"{mapped} is the name of no mapped catalogue: give one that ends in .safetensors")
    found, size = write_mapped_copy(table, mapped), mapped.stat().st_size
    facts = {
        "items": len(found),
        "paths": found.trie.size,
        "bytes": size,
        "bytes_an_item": round(size / len(found), 1),
        "file": str(mapped),
    }
    if as_json:
        common.emit(facts)
        return
    line = f"{mapped}: {len(found):,} items, {found.trie.size:,} paths, {size / 2**20:.1f} MiB, {facts['bytes_an_item']} bytes an item"
    common.console(False).print(line, soft_wrap=True)
