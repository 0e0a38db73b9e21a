"""The protocol of accept rules, for rules over single values and over whole beam levels."""

from typing import Any, Protocol

from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Scored, Verdict


class AcceptRule(Protocol):
    """Decides which draft tokens are kept and what is committed after them.

    A rule is pure: the same draft, distributions and noise give the same verdict.
    """

    @property
    def exactness(self) -> str:
        """The guarantee: "token-exact", "distribution-exact", "group-exact" or "lossy", as in `core.rules.base`."""
        ...

    @property
    def coupled(self) -> bool:
        """True if draft tokens must be drawn with the target's own noise."""
        ...

    @property
    def uses_q(self) -> bool:
        """True if the rule reads the distributions that draft tokens were drawn from."""
        ...

    @property
    def trees(self) -> bool:
        """True if drafts may branch."""
        ...

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        """Judge one draft.

        Args:
            draft: the draft, N nodes of which G are draft tokens.
            scored: the target's distributions [B, N] after every node.
            noise: the generation's random numbers.

        Returns:
            The columns to keep and the values to commit.
        """
        ...


def refuse_unordered(target: Any, rule: Any) -> None:
    """Refuse a rule that reads how far apart two values are, for a target whose values have no order.

    Args:
        target: the target; one whose values are in order, as numbers are, has a true attribute `ordered`.
        rule: the accept rule; one that reads distances has a true attribute `reads_order`.

    Raises:
        ValueError: in one line.
    """
    if getattr(rule, "reads_order", False) and not getattr(target, "ordered", False):
        raise ValueError(
            f"{type(rule).__name__} reads how far apart two values are, but those of this target have no order (ids of text, codes): "
            "choose another accept rule, such as 'topk-gap' or 'typical', or a target with ordered = True"
        )


def refuse_other_table(target: Any, rule: Any) -> None:
    """Refuse a rule whose table of values, such as a codebook, is not that of the target.

    Args:
        target: the target; `values` is how many values it has, `codebook_size` how many of them, the first, are codes.
        rule: the accept rule; one with a table has its number of values as `table_size`. Values behind the table stand for themselves.

    Raises:
        ValueError: in one line.
    """
    size, values, codes = getattr(rule, "table_size", None), getattr(target, "values", None), getattr(target, "codebook_size", None)
    if size is None or values is None or (size <= values if codes is None else size in (codes, values)):
        return
    own = f"{values} values" if codes is None else f"{codes} codes"
    raise ValueError(
        f"the accept rule ({type(rule).__name__}) has a table of {size} values, and the target has {own}: make the table of the target's "
        "own codebook or embeddings, or number it anew with placed(...)"
    )
