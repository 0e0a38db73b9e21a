"""A torchaudio built for another torch breaks every import of transformers with a long traceback: say so in one line instead."""

from importlib.metadata import PackageNotFoundError, version

REMEDY = "reinstall the pair with: pip install 'torch>=2.11,<2.15' 'torchaudio>=2.11,<2.12'"


def check_torchaudio() -> None:
    """ImportError, with the remedy, when torchaudio is installed but does not load. Does nothing where there is none."""
    try:
        found = version("torchaudio")
    except PackageNotFoundError:
        return
    try:
        import torchaudio  # noqa: F401
    except (ImportError, OSError, AttributeError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ImportError(f"torchaudio {found} does not match torch {version('torch')} ({first}): {REMEDY}") from None
