"""--drafter of commands that load several kinds of models."""

from collections.abc import Sequence

KINDS = ("text", "image", "speech", "recognizer", "recommender")
"""Kinds of models, as options are called."""


def drafters_by_kind(given: Sequence[str], kinds: Sequence[str], what: str) -> dict[str, str]:
    """Return the drafters by kind of model.

    Args:
        given: the values of --drafter: NAME, or KIND=NAME.
        kinds: kinds of the models that are loaded.
        what: what is done with models, for messages, such as "served".

    Raises:
        ValueError: for a drafter of no model or of an unnamed one of several, and for two of one model.
    """
    found: dict[str, str] = {}
    for word in given:
        kind, equals, name = word.partition("=")
        if not equals or kind not in KINDS:
            kind, name = kinds[0], word
            if len(kinds) > 1:
                raise ValueError(f"--drafter {word} is for one of several models: give KIND=NAME, such as {kinds[0]}={word}")
        if kind not in kinds:
            raise ValueError(f"--drafter {word} is for a {kind} model, and none is {what}: give --{kind} too")
        if kind in found:
            raise ValueError(f"--drafter was given twice for the {kind} model: give one")
        found[kind] = name
    return found
