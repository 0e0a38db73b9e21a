"""The contenders of the suite of real models: transformers' ways to generate, and mmspec's drafters under draft length "auto"."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from time import process_time
from typing import Any

from mmspec.bench.compare.peers import Outcome, assistance, run_mmspec, run_transformers
from mmspec.drafters.checkpoints.load import load_drafter
from mmspec.loading.model_drafter import aligned_model
from mmspec.loading.text import Pair, named_drafter, with_drafter
from mmspec.run.config import changed
from mmspec.utils.names import unknown

PLAIN, LOOKUP, EARLY_EXIT = "transformers", "transformers lookup", "transformers early exit"
ENGINE = "mmspec plain"
MODEL_FREE = ("lookup", "suffix", "recycling")
LOOKUP_TOKENS = 10
"""`prompt_lookup_num_tokens` of transformers' prompt lookup, as its documentation has it."""


@dataclass(frozen=True)
class Measured:
    """One contender on one batch.

    Attributes:
        tokens: the new tokens of each row.
        calls: target forwards.
        row_calls: target forwards, summed over the rows that took part.
        seconds: wall-clock seconds.
        cpu: seconds of the process on all cores.
        refused: why the contender did not run, in one line.
    """

    tokens: list[list[int]]
    calls: int
    row_calls: int
    seconds: float
    cpu: float
    refused: str | None = None

    @property
    def count(self) -> int:
        """Number of new tokens, over all rows."""
        return sum(map(len, self.tokens))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return asdict(self)


Run = Callable[[Pair, dict[str, Any], int], Measured]
"""(pair with the settings of the run, inputs, seed) -> Measured."""


def real_contenders(pair: Pair, drafters: Sequence[str], mini: Any = None) -> dict[str, Run]:
    """Return every contender by name.

    Args:
        pair: the target, without a drafter.
        drafters: small models' and trained drafters' folders or names, each a contender; a model is transformers' assistant, too.
        mini: the shipped mini that `pair` is of, for names of its drafters.

    Raises:
        ValueError: for a drafter that cannot be loaded, or has another vocabulary than the target.
    """
    layers = pair.target.config.get_text_config().num_hidden_layers
    found: dict[str, Run] = {
        PLAIN: transformers_run({}),
        LOOKUP: transformers_run({"prompt_lookup_num_tokens": LOOKUP_TOKENS}),
        EARLY_EXIT: transformers_run({"assistant_early_exit": max(1, layers // 4)}),
        ENGINE: mmspec_run(None),
    }
    found |= {f"mmspec {name}": mmspec_run(name) for name in MODEL_FREE}
    for name in drafters:
        found |= drafter_contenders(pair, name, name, mini, trained={"int8": {"int8": True}})
    return found


def named_contenders(runs: Mapping[str, Run], names: str | None) -> dict[str, Run]:
    """Return the contenders that a list names, in their order in `runs`.

    Args:
        runs: every contender by name.
        names: names separated by commas; None for all. `generate` is always among them: the others are compared with it.

    Raises:
        ValueError: for unknown names.
    """
    asked = set(runs) if names is None else {PLAIN, *(name.strip() for name in names.split(","))}
    for name in sorted(asked - set(runs)):
        raise unknown("contender", name, runs)
    return {name: run for name, run in runs.items() if name in asked}


def drafter_contenders(
    pair: Pair,
    drafter: str,
    called: str,
    mini: Any = None,
    other_ids: bool = False,
    lighter: Mapping[str, dict[str, Any]] | None = None,
    trained: Mapping[str, dict[str, Any]] | None = None,
) -> dict[str, Run]:
    """Return the contenders of one drafter by name: mmspec's, and transformers' assisted generation if the drafter is a model.

    Args:
        pair: the target, without a drafter.
        drafter: the drafter's folder or name.
        called: what the contenders' names call it.
        mini: the shipped mini that `pair` is of.
        other_ids: drafters of another vocabulary run, too.
        lighter: what is added to the contender's name, and options of `loading.model_drafter.LIGHTER`: contenders of their own.
        trained: the same for a trained drafter, with options of `load_drafter`.

    Raises:
        ValueError: for a drafter that cannot be loaded, or has another vocabulary than the target.
    """
    kind, path = named_drafter(drafter)
    own = with_drafter(replace(pair, config=changed(pair.config, "drafter", kind=kind, path=path)), mini, pair.target.device)
    if own.own_tokenizer is not None and not other_ids:
        raise ValueError(f"{drafter} has another vocabulary than {pair.name}: this suite takes drafters with the target's tokenizer")
    assist = assistance(own, 0) if own.model is not None else None
    found = {} if assist is None else {f"transformers assisted by {called}": transformers_run(assist)}
    found |= {f"mmspec {called}": mmspec_run(own.drafter)}
    if kind == "trained":
        folder = str(path)
        return found | {f"mmspec {called} + {words}": _trained_run(folder, pair, options) for words, options in (trained or {}).items()}
    return found | {f"mmspec {called} + {words}": _lighter_run(own, options) for words, options in (lighter or {}).items()}


def _trained_run(folder: str, pair: Pair, options: dict[str, Any]) -> Run:
    """The contender of a trained drafter loaded with options, or a refusal with its reason."""
    try:
        return mmspec_run(load_drafter(folder, pair.target, **options))
    except ValueError as error:
        return _refused(str(error))


def _refused(reason: str) -> Run:
    refused = Measured([], 0, 0, 0.0, 0.0, refused=reason)
    return lambda pair, inputs, seed: refused


def _lighter_run(own: Pair, options: dict[str, Any]) -> Run:
    """The contender of a lighter copy of a pair's model, or a refusal with its reason."""
    try:
        return mmspec_run(aligned_model(own, options))
    except ValueError as error:
        return _refused(str(error))


def transformers_run(options: dict[str, Any]) -> Run:
    """Return transformers' `generate` as a contender. What it cannot do is a refusal, with its reason.

    Args:
        options: of `generate`, besides the settings of the run; without any, errors are raised.
    """

    def run(pair: Pair, inputs: dict[str, Any], seed: int) -> Measured:
        try:
            return _timed(lambda: run_transformers(pair, inputs, seed, options))
        except Exception as error:  # a peer's fault must not end the benchmark
            if not options:
                raise
            return Measured([], 0, 0, 0.0, 0.0, refused=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")

    return run


def mmspec_run(drafter: Any) -> Run:
    """Return mmspec's `generate` with a drafter, or None, as a contender."""

    def run(pair: Pair, inputs: dict[str, Any], seed: int) -> Measured:
        return _timed(lambda: run_mmspec(pair, inputs, seed, drafter=drafter, tree=None, accept="exact", draft_length="auto"))

    return run


def _timed(work: Callable[[], Outcome]) -> Measured:
    start = process_time()
    done = work()
    return Measured(done.tokens, done.calls, done.row_calls, done.seconds, process_time() - start)
