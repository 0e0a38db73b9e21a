"""Outcomes of checks, and the likely causes of failures."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Finding:
    """Outcome of one check.

    Attributes:
        name: what was checked.
        passed: False if a fault was found.
        compared: number of outputs or values that were compared.
        detail: what was observed.
        kind: kind of fault that the check detects, a key of `CAUSES`; "" for none.
        cause: likely cause of a failure; "" if unknown.
    """

    name: str
    passed: bool
    compared: int
    detail: str
    kind: str = ""
    cause: str = ""


LEFT_OUT = "left out"
"""Name of the finding that lists checks for which no time was left."""
CAUSES = {
    "nan": "NaN or infinity in the target: check its weights and dtype (float16 overflows where bfloat16 does not)",
    "repeat": "dropout or noise in the target: a submodule is in training mode (call model.eval()), or its forward draws random numbers",
    "columns": "what it computes for a token depends on the others of a forward: one activation scale for a whole tensor, statistics "
    "of a batch, or a hook on the last position",
    "causal": "the target reads in both directions: it is an encoder, or its causal mask is missing",
    "drafter nan": "NaN or infinity in the drafter: check its weights and dtype",
    "chain": "mask or positions of drafted tokens: one of them is off, even for a single prompt and a chain",
    "batch": "mask or positions in a batch: a prompt's padding or its neighbours change its logits",
    "window": "attention window, chunk or rope switch: what a token sees or its rope factor changes at another position than it should",
    "tree": "trees: a node sees its sibling, or positions or attention biases (ALiBi) follow slots instead of depth",
    "tree window": "trees across the attention window, chunk or rope switch",
    "q": "the drafter does not draw from the distribution q it reports: temperature or truncation were applied to one of them only",
    "noise": "the drafter draws with the random numbers that judge it: give it streams of its own (noise.draft_token)",
    "rule": "the accept rule, or a drafter whose q is not what its draft tokens were drawn from",
    "engine": "the target's scores are correct, so the fault is in the rule or in the drafter's session",
}
_FIRST = ("nan", "repeat", "columns", "causal", "chain", "batch", "window", "tree", "tree window", "drafter nan", "q", "noise", "rule")
_LATER = {"tokens": _FIRST, "tree tokens": _FIRST, "batch tokens": _FIRST, "window tokens": _FIRST, "rule": _FIRST[:-1]}
"""Kinds whose failure is explained by that of another kind."""


def likely_cause(findings: Iterable[Finding]) -> str:
    """Return the likely cause of all failures: that of the first kind that no other kind explains; "" if all checks passed."""
    failed = {finding.kind: finding.cause for finding in findings if not finding.passed}
    if not failed:
        return ""
    for kind in _FIRST:
        if kind in failed:
            return failed[kind] or CAUSES[kind]
    if failed.keys() == {"tree tokens"}:
        return "trees: the drafter's tree, or how a branch is kept"
    if failed.keys() == {"batch tokens"}:
        return "the batch: rows that stop or draft differently change each other"
    return CAUSES["engine"] if failed.keys() - {""} else ""


def with_causes(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings, with the likely cause in each failed one."""
    found = []
    for finding in findings:
        cause = finding.cause or CAUSES.get(finding.kind, "")
        if finding.kind in _LATER:
            cause = likely_cause(findings)
        found.append(finding if finding.passed else replace(finding, cause=cause))
    return found
