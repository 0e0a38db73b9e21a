"""Checks that torchaudio matches torch: a mismatch breaks every import of transformers with a long traceback."""

from importlib.metadata import PackageNotFoundError, version

REMEDY = "reinstall the pair with: pip install 'torch>=2.11,<2.15' 'torchaudio>=2.11,<2.12'"


def check_torchaudio() -> None:
    """ImportError, with the remedy, when torchaudio is installed but does not load.

    Pairs known to work are recognised by their versions, so that importing mmspec stays fast; any other is imported.
    """
    try:
        found, torch = version("torchaudio"), version("torch")
    except PackageNotFoundError:
        return
    if found.startswith("2.11.") and torch.startswith(("2.11.", "2.14.")) and "+" not in torch:
        return
    try:
        import torchaudio  # noqa: F401
    except (ImportError, OSError, AttributeError, RuntimeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ImportError(f"torchaudio {found} does not match torch {torch} ({first}): {REMEDY}") from None
