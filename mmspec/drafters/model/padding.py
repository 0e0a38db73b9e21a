"""Whether two models of unequal vocabulary sizes can have one tokenizer, as far as their configs tell.

Models carry no tokenizer. One tokenizer's embedding tables differ by padding (Qwen2.5: 151936 and 152064; Pythia: 50304, 50432, 50688) or
by a few added tokens (32000 and 32003). Accepted are sizes at most 5 % apart whose larger one is a multiple of 16 or at most 64 tokens
larger, of models that agree on an end, a beginning or a padding id where both configs name such ids. Whisper's are accepted at equal sizes
only: its English and multilingual tokenizers differ by one token, and every added language moves the ids behind it. Unequal tokenizers of
one size cannot be told apart here; they cost acceptance, never exactness.
"""

from typing import Any

_PADDING = 0.05  # one tokenizer's embedding tables differ by padding only: at most this share
_MULTIPLE, _ADDED = 16, 64
_ROLES = ("eos_token_id", "bos_token_id", "pad_token_id")


def vocabulary_size(model: Any) -> int:
    """Return the number of values of a model's logits."""
    return model.config.get_text_config(decoder=True).vocab_size


def refuse_other_tokenizer(target: Any, drafter: Any) -> None:
    """Raise ValueError unless the drafter's vocabulary can be the target's with different padding."""
    mine, theirs = vocabulary_size(target), vocabulary_size(drafter)
    why = None if mine == theirs else _difference(target, drafter, mine, theirs)
    if why is not None:
        raise ValueError(
            f"mismatched vocabularies: the target has {mine} tokens, the drafter {theirs}{why}; choose a drafter with the same tokenizer, "
            "or pass mmspec.text.aligned_drafter(model, tokenizer, drafter_model, drafter_tokenizer)"
        )


def _difference(target: Any, drafter: Any, mine: int, theirs: int) -> str | None:
    """Why two sizes cannot belong to one tokenizer, "" where the sizes show it; None if they can."""
    most, apart = max(mine, theirs), abs(mine - theirs)
    if apart > _PADDING * most:
        return ""
    if [model.config.model_type for model in (target, drafter)] == ["whisper", "whisper"]:
        return ", and Whisper's ids differ where its sizes do"
    if most % _MULTIPLE and apart > _ADDED:
        return f", and {most} is no padded size"
    named = [(role, _ids(target, role), _ids(drafter, role)) for role in _ROLES]
    both = [(role, ours, others) for role, ours, others in named if ours and others]
    if both and not any(ours & others for _, ours, others in both):
        role, ours, others = both[0]
        return f", and {role} is {min(ours)} in the target and {min(others)} in the drafter"
    return None


def _ids(model: Any, role: str) -> set[int]:
    """The ids that a model's configs name for one role."""
    configs = (model.config.get_text_config(decoder=True), model.config, getattr(model, "generation_config", None))
    found = [getattr(config, role, None) for config in configs]
    return {i for one in found for i in (one if isinstance(one, (list, tuple)) else (one,)) if isinstance(i, int)}
