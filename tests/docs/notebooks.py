"""Runs the notebooks of docs/notebooks in a fresh kernel. As a command it stores their outputs in them.

python -m tests.docs.notebooks
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from tests.docs.pages import ROOT

FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook at `path` with the outputs of a run of its own, and nothing that differs from run to run."""
    notebook = nbformat.read(path, as_version=4)
    path_of_modules = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with TemporaryDirectory() as sockets, patch.dict(os.environ, PYTHONPATH=path_of_modules, PYTHONWARNINGS="ignore"):
        manager = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=f"{sockets}/kernel")  # no network port
        NotebookClient(notebook, km=manager, timeout=300, startup_timeout=180, record_timing=False, coalesce_streams=True).execute(
            cwd=str(FOLDER)
        )
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def printed(notebook: nbformat.NotebookNode) -> list[str]:
    """The lines that the cells printed."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [line for output in outputs if output.output_type == "stream" for line in output.text.splitlines()]


def kinds(notebook: nbformat.NotebookNode) -> list[list[str]]:
    """What each cell gives: streams by name, results by their types."""
    return [
        [output.name if output.output_type == "stream" else ",".join(sorted(output.get("data", {}))) for output in cell.get("outputs", [])]
        for cell in notebook.cells
    ]


if __name__ == "__main__":
    for path in NOTEBOOKS:
        nbformat.write(executed(path), path)
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")
