"""Speculative decoding of text, images, speech and recommendations: the same output as plain decoding, in fewer calls of the model.

>>> import mmspec
>>> mini = mmspec.load("text")
>>> out = mmspec.text.generate(mini.target, mini.examples, drafter=mini.drafters["model"])

Importing mmspec loads no heavy library: the four packages and what they use are imported on first use.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.utils.lazy import exports
from mmspec.utils.renamed import install
from mmspec.utils.torchaudio_check import check_torchaudio
from mmspec.utils.version import __version__  # noqa: F401

try:
    check_torchaudio()
except ImportError as error:
    if Path(sys.argv[0]).name == "mmspec":  # the command: one line and exit 2, as for any other wrong setup
        print(f"mmspec: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    raise

install()

if TYPE_CHECKING:
    from mmspec import recsys, speech, text, vision
    from mmspec.bench.explain.explanation import Explanation
    from mmspec.minis import Mini
    from mmspec.serving.engine import Engine
else:
    _MODULES = {"Engine": "serving.engine", "recsys": "", "speech": "", "text": "", "vision": ""}
    __getattr__, __dir__ = exports(__name__, _MODULES)

__all__ = ["Engine", "explain", "load", "load_drafter", "recsys", "speech", "text", "vision"]


def load(name: str) -> "Mini":
    """Load a shipped small model with its drafters, examples and card.

    Args:
        name: "text", "vision", "vision-fashion", "continuous", "continuous-mixture", "continuous-masked", "speech", "vlm", "recsys" or
            "recsys-deep".

    Returns:
        A `Mini`: `.target`, `.drafters` (a dict by name), `.processor`, `.examples`, `.card`, and `.catalogue` for recommenders.

    Raises:
        ValueError: for an unknown name; the message lists the names.
    """
    from mmspec import minis

    return minis.load(name)


def load_drafter(path: str | Path, target: Any = None, **options: Any) -> Any:
    """Load the trained drafter in a folder: one trained by a recipe, or a published one (EAGLE, EAGLE-3, Medusa, `speculators`).

    Args:
        path: the folder.
        target: the transformers model that the drafter is for. Needed by layouts that share its embeddings or head; the drafter gets its
            device and dtype.
        options: those of `mmspec.drafters.checkpoints.load.load_drafter`.

    Returns:
        A drafter that `generate` takes as `drafter`.

    Raises:
        ValueError: for a broken folder, or a drafter that does not fit the target.
    """
    from mmspec.drafters.checkpoints import load as checkpoint

    return checkpoint.load_drafter(path, target, **options)


def explain(
    model: Any,
    inputs: Any,
    drafter: Any,
    *,
    tokenizer: Any = None,
    drafter_tokenizer: Any = None,
    reference: Any = None,
    batch_size: int = 1,
    **settings: Any,
) -> "Explanation":
    """Find out why a drafter is not accepted, or not faster, on prompts of your own; `mmspec explain` is the command.

    Args:
        model: the target, as in `mmspec.text.generate`.
        inputs: texts, which need `tokenizer`, or what a tokenizer returned: `input_ids` and `attention_mask`.
        drafter: as in `mmspec.text.generate`.
        tokenizer: the target's tokenizer.
        drafter_tokenizer: the tokenizer of a drafter model, to compare with the target's.
        reference: the target in full precision, where the target's weights are quantised.
        batch_size: prompts that run together.
        settings: accept, draft_length, tree, seed, temperature, top_k, top_p and max_new_tokens (64 by default) as in
            `mmspec.text.generate`; chat=True wraps texts in the tokenizer's chat template.

    Returns:
        The explanation: `.verdict`, `.causes` with their evidence and remedies, `.facts` with every figure, and `to_dict()`.

    Raises:
        ValueError: for invalid arguments, and for pairs that cannot run.
    """
    from mmspec.bench.explain.explanation import ExplainPlan, explain_pair
    from mmspec.bench.explain.pairs import pair_for, prompts_from
    from mmspec.models.families.registry import family_of
    from mmspec.run.arguments import CHECKS
    from mmspec.utils.strict import check_call

    tokenizers = {"tokenizer": tokenizer, "drafter_tokenizer": drafter_tokenizer}
    check_call(explain, CHECKS, model, inputs, drafter, **tokenizers, reference=reference, batch_size=batch_size)
    if reference is not None:
        family_of(reference)
    pair = pair_for(model, drafter, tokenizer, **settings)
    prompts = prompts_from(inputs, tokenizer, model)
    return explain_pair(pair, ExplainPlan(prompts, batch_size, reference=reference, drafter_tokenizer=drafter_tokenizer))
