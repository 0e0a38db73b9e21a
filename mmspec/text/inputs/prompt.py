"""The prompt of a text request: inputs checked, prepared by the family, and measured against the model's positions."""

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from torch import Tensor

from mmspec.models.compat import execution_device
from mmspec.text.inputs.checks import checked, tensors


@dataclass(frozen=True)
class TextPrompt:
    """What a model reads of a request.

    Args:
        inputs: tensors on the model's device, prepared by the family.
        ids: LongTensor [B, P] of the decoder's prompt.
        mask: bool [B, P].
        seconds: time that the family's preparation took, such as detecting a language.
    """

    inputs: Mapping[str, Any]
    ids: Tensor
    mask: Tensor
    seconds: float

    @staticmethod
    def of(model: Any, family: Any, inputs: Mapping[str, Any]) -> "TextPrompt":
        """Check and prepare inputs.

        Args:
            model: the target.
            family: its family.
            inputs: what its tokenizer or processor returned.

        Returns:
            The prompt.

        Raises:
            ValueError: for inputs that the model cannot read.
        """
        found = checked(model, family, tensors(inputs, execution_device(model)))
        begun = perf_counter()
        found = family.prepared(model, found) if hasattr(family, "prepared") else found
        seconds = perf_counter() - begun
        return TextPrompt(found, *family.prompt(model, found), seconds)  # pyright: ignore[reportCallIssue]

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        mask = self.inputs.get("attention_mask")
        return int(mask.sum(1).max()) if mask is not None and mask.shape == self.ids.shape else self.ids.shape[1]

    def check_length(self, limit: int | None, max_new_tokens: int, whose: str = "the model's") -> None:
        """Check the length of prompt and output.

        Args:
            limit: positions there are; None for no limit.
            max_new_tokens: largest number of new tokens.
            whose: owner of the limit, for the message.

        Raises:
            ValueError: if both exceed the limit.
        """
        if limit is None or self.ids.shape[0] == 0:
            return
        if self.longest + max_new_tokens > limit:
            budget = limit - self.longest
            mend = f"ask for at most {budget}" if budget > 0 else "shorten the prompt"
            raise ValueError(
                f"a prompt of {self.longest} tokens and max_new_tokens {max_new_tokens} exceed {whose} {limit} positions: {mend}"
            )
