"""Recommendations for prompts that are texts: a language model that reads instructions and writes items' paths (LC-Rec, 2311.09049)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mmspec.jobs.recommendations import Recommend, User, UserLists
from mmspec.loading.recsys import MINIS
from mmspec.recsys.generation import recommend


def prompt_tokenizer(model: str) -> Any:
    """Load the tokenizer of a recommender.

    Args:
        model: a folder, whose `target/` may hold it, or a hub name.

    Returns:
        The tokenizer.

    Raises:
        ValueError: for a model without one.
    """
    from pathlib import Path

    from transformers import AutoTokenizer

    home = Path(model).expanduser()
    place = home / "target" if (home / "target").is_dir() else home if home.exists() else model
    try:
        if model in MINIS:
            raise ValueError("it reads items alone")
        return AutoTokenizer.from_pretrained(place)
    except (OSError, ValueError, RecursionError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"{model} has no tokenizer, which texts need ({reason}): save it beside the model") from None


@dataclass(frozen=True)
class RecommendPrompts(Recommend):
    """Worker that recommends items for every record's user id and prompt; `history` names the column of prompts.

    Args:
        tokenizer: of the model.
    """

    tokenizer: Any = None

    def check(self, record: dict[str, Any]) -> User:
        """Return (user id, token ids, lists). ValueError for values that are null, empty or too long."""
        user, prompt = self._user(record), record[self.history]
        if not isinstance(prompt, str) or not prompt.strip():
            raise ValueError(f"{self.history} is {'null' if prompt is None else 'no text' if prompt else 'empty'}: give a text")
        ids = self.tokenizer(prompt)["input_ids"]
        if not ids:
            raise ValueError(f"{self.history} has no token: give a text that the model's tokenizer knows")
        if self._positions is not None and len(ids) > self._positions:
            raise ValueError(f"{self.history} takes {len(ids)} tokens, and the model has room for {self._positions}: give a shorter text")
        return user, ids, UserLists(prompt, self._lists(record))

    def parts(self, users: Sequence[User]) -> Iterator[list[int]]:
        """Yield the numbers of `users` that are searched together, shortest prompts first."""
        order = sorted(range(len(users)), key=lambda place: len(users[place][1]))
        for first in range(0, len(order), self.rows):
            yield order[first : first + self.rows]

    def rehearse(self) -> None:
        """Search for one prompt, so that invalid options raise their ValueError before a job begins."""
        told, ids = self.recommender, self.tokenizer("a")["input_ids"] or [0]
        recommend(told.model, self._prompts([ids]), self._drafter(), catalogue=told.catalogue, **self.options)

    def _prompts(self, histories: list[list[int]]) -> Any:
        width, device = max(map(len, histories)), self.recommender.device
        ids = torch.tensor([[0] * (width - len(line)) + line for line in histories], device=device)
        mask = torch.tensor([[0] * (width - len(line)) + [1] * len(line) for line in histories], device=device)
        return {"input_ids": ids, "attention_mask": mask}
