"""Pairs of objects in memory: a model, its drafter and tokenizers, as `mmspec.explain` takes them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mmspec.bench.check.custom import IdPair
from mmspec.loading.text import Pair
from mmspec.models.compat import execution_device
from mmspec.models.families.registry import family_of
from mmspec.models.model_checks import check_prompt_ids, model_name
from mmspec.run.arguments import public_call
from mmspec.run.config import Config, DrafterSection, RunSection
from mmspec.text.inputs.checks import checked, tensors


@public_call
def pair_for(
    model: Any,
    drafter: Any,
    tokenizer: Any = None,
    *,
    accept: Any = "exact",
    draft_length: int | str = "auto",
    tree: Any = None,
    seed: int = 0,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    max_new_tokens: int = 64,
    chat: bool = False,
) -> Pair:
    """Make a pair of models that are loaded.

    Args:
        model: the target.
        drafter: as in `mmspec.text.generate`.
        tokenizer: the target's tokenizer; None where prompts are token ids.
        accept, draft_length, tree, seed, temperature, top_k, top_p, max_new_tokens: as in `mmspec.text.generate`.
        chat: wrap prompts in the chat template of `tokenizer`.

    Returns:
        The pair.

    Raises:
        ValueError: for a target that cannot run, a missing drafter, and arguments out of bounds.
    """
    family_of(model)
    if drafter is None:
        raise ValueError("drafter is None: give the drafter that is to be explained")
    name = drafter if isinstance(drafter, str) else type(drafter).__name__
    shape: dict[str, Any] = {"length": draft_length, "tree": tree}
    section = DrafterSection(kind=drafter if isinstance(drafter, str) else "trained", **shape)  # a kind that may grow trees
    run = RunSection(max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    made = Pair if tokenizer is not None else IdPair
    pair = made(model_name(model), model, tokenizer, drafter, name, accept, Config(drafter=section, run=run), chat=chat)
    return replace(pair, model=drafter if hasattr(drafter, "generate") and not hasattr(drafter, "begin") else None)


def prompts_from(inputs: Any, tokenizer: Any, model: Any) -> list[Any]:
    """Return prompts as a pair takes them.

    Args:
        inputs: texts; or what a tokenizer returned, `input_ids` LongTensor [B, P] and `attention_mask` [B, P].
        tokenizer: the target's tokenizer; None where `inputs` are ids.
        model: the target.

    Returns:
        Texts, or tuples of ids.

    Raises:
        ValueError: for anything else, and for texts without a tokenizer.
    """
    if isinstance(inputs, Mapping) and "input_ids" in inputs:
        if tokenizer is not None:
            raise ValueError("inputs holds token ids and tokenizer was given: give texts, or leave tokenizer out")
        found = checked(model, family_of(model), tensors(inputs, execution_device(model)))
        check_prompt_ids("inputs", found, model.config.get_text_config(decoder=True).vocab_size)
        ids, mask = found["input_ids"], found.get("attention_mask")
        real = ids == ids if mask is None else mask.bool()
        return [tuple(row[there].tolist()) for row, there in zip(ids, real, strict=True)]
    if isinstance(inputs, str) or not isinstance(inputs, Sequence) or not all(isinstance(text, str) for text in inputs):
        raise ValueError("inputs is neither a list of texts nor what a tokenizer returned: give one of them")
    if tokenizer is None:
        raise ValueError("inputs are texts: give tokenizer too, the target's")
    return list(inputs)
