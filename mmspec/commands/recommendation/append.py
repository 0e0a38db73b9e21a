"""`mmspec recommend append`: new items in the catalogue of a trained folder, without training."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.commands import common

EXAMPLES = """Examples:

\b
  mmspec recommend append shop/ new-items.parquet
"""


def append(
    folder: Annotated[str, typer.Argument(help="What mmspec recommend prepare wrote.", metavar="FOLDER")],
    items: Annotated[str, typer.Argument(help="New items, with the columns of the first ones.", metavar="ITEMS")],
    as_json: common.JSON = False,
    verbose: common.VERBOSE = False,
) -> None:
    """Add new items to the catalogue. The earlier catalogue is kept in versions/: jobs begun with it go on with it."""
    common.begin(verbose)
    from mmspec.recsys.preparation.new_items import append_new

    found = append_new(Path(folder), Path(items))
    if as_json:
        common.emit(
            {
                "items": len(found.items),
                "shared": found.shared,
                "note": found.note,
                "catalogue": len(found.catalogue),
                "earlier": str(found.earlier),
            }
        )
        return
    what = f"{len(found.items):,} items added, {len(found.catalogue):,} in all; {found.shared:,} share the path of another"
    common.console(False).print(f"{what}; earlier catalogue: {found.earlier}", soft_wrap=True)
    if found.note:
        common.console(False).print(found.note, soft_wrap=True)
