"""`mmspec recommend assign`: semantic ids of new items, by the quantiser that was fitted to the first ones."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.commands import common
from mmspec.utils.places import Writes

EXAMPLES = """Examples:

\b
  mmspec recommend assign shop/ new-items.parquet ids.parquet
"""


def assign(
    folder: Annotated[str, typer.Argument(help="What mmspec recommend prepare wrote.", metavar="FOLDER")],
    items: Annotated[str, typer.Argument(help="New items, with the columns of the first ones.", metavar="ITEMS")],
    out: Annotated[str, typer.Argument(help="A Parquet file for item, codes and path.", metavar="FILE"), Writes()],
    as_json: common.JSON = False,
    verbose: common.VERBOSE = False,
) -> None:
    """Give semantic ids to new items and write them to a file; the folder stays as it is."""
    common.begin(verbose)
    from mmspec.recsys.preparation.new_items import assign_new, write_assigned

    found = assign_new(Path(folder), Path(items))
    write_assigned(found, Path(out))
    if as_json:
        common.emit({"items": len(found.items), "shared": found.shared, "note": found.note, "out": out})
        return
    common.console(False).print(f"{len(found.items):,} items in {out}; {found.shared:,} share the path of another", soft_wrap=True)
    if found.note:
        common.console(False).print(found.note, soft_wrap=True)
