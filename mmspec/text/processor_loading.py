"""Loading the tokenizer or processor that is saved beside a checkpoint."""

from typing import Any


def load_processor(where: str, senses: bool, side: str) -> Any:
    """A checkpoint's tokenizer or processor, ready for batches.

    Args:
        where: a folder, or a hub name.
        senses: the model reads pictures or sound, and has a processor.
        side: where prompts are padded, "left" or "right".

    Raises:
        ValueError: it cannot be loaded, or torchvision, which transformers' video processors need, is not installed.
    """
    import transformers as hf

    try:
        processor = (hf.AutoProcessor if senses else hf.AutoTokenizer).from_pretrained(where, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        if isinstance(error, ImportError) and "torchvision" in str(error).lower():
            raise ValueError(f"the processor of {where} reads video and needs torchvision: pip install 'mmspec[video]'") from None
        why = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(":")
        raise ValueError(f"the tokenizer of {where} cannot be loaded: {why}; save it beside the model") from None
    tokenizer = getattr(processor, "tokenizer", processor)
    tokenizer.padding_side = side
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return processor
