"""What codec language models learn from: prompts and the codes of recorded speech, in batches of about one length."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmspec.minis import speech_data as spoken
from mmspec.minis.char_tokenizer import FIRST_CODE, TEMPLATE, letter_tokenizer
from mmspec.speech.codecs.small import PatchCodec, PatchCodecConfig
from mmspec.train.held_out import array_keys
from mmspec.train.states.identity import keyed


@dataclass(frozen=True)
class SpeechLines:
    """What there is to learn: ids of prompt, codes and end, and how many of them are the prompt."""

    ids: list[Tensor]
    prompts: list[int]

    def keys(self) -> list[bytes]:
        """What each line is told by: its prompt and its codes."""
        return array_keys(self.ids)

    def part(self, chosen: Sequence[int]) -> "SpeechLines":
        """Return the lines of the given numbers."""
        return SpeechLines([self.ids[number] for number in chosen], [self.prompts[number] for number in chosen])

    def batch(self, chosen: list[int]) -> tuple[Tensor, Tensor]:
        """Ids [B, S] padded on the right, and which of them are codes or the end, bool [B, S]."""
        rows = [self.ids[index].long() for index in chosen]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        own = nn.utils.rnn.pad_sequence([torch.ones_like(row, dtype=torch.bool) for row in rows], batch_first=True)
        for row, index in enumerate(chosen):
            own[row, : self.prompts[index]] = False
        return ids, own

    def alike(self, pick: random.Random, rows: int) -> list[int]:
        """Numbers of lines of about the same length: the best of many, around one drawn at random."""
        pool = sorted((pick.randrange(len(self.ids)) for _ in range(8 * rows)), key=lambda index: len(self.ids[index]))
        start = pick.randrange(len(pool) - rows + 1)
        return pool[start : start + rows]

    def drawn(self, turn: int, rows: int) -> tuple[Tensor, Tensor]:
        """Batch number `turn`, the same on every call."""
        return self.batch(self.alike(random.Random(turn), rows))


def lines_of(found: spoken.Spoken, codec: PatchCodec) -> SpeechLines:
    """The lines of texts, voices and waves."""
    tokenizer = letter_tokenizer()
    prompts = [tokenizer(TEMPLATE.format(voice=voice, text=text))["input_ids"] for text, voice, _ in found]
    end = torch.tensor([tokenizer.eos_token_id])
    codes = [codec.encode(wave) + FIRST_CODE for _, _, wave in found]
    ids = [torch.cat([torch.tensor(prompt), code, end]) for prompt, code in zip(prompts, codes, strict=True)]
    return SpeechLines([line.to(torch.int16) for line in ids], [len(prompt) for prompt in prompts])


def read_lines(work: Path, codec: PatchCodec, count: int, split: str) -> SpeechLines:
    """`count` numbers and as many sentences of the split "train" or "test", made once and kept in `work`."""
    name, seed = ("lines", 1) if split == "train" else ("held", 2)
    kept, sounds = keyed(work / f"{name}.pt", count, codec), work / ("spoken.pt" if split == "train" else "held-spoken.pt")
    if not kept.exists():
        made = lines_of(spoken.corpus(sounds, count, seed, split), codec)
        torch.save((made.ids, made.prompts), kept)
    return SpeechLines(*torch.load(kept))


def noise_lines(text: str = "one two") -> SpeechLines:
    """A few lines of noise that say `text`, for --smoke."""
    return lines_of([(text, "theo", 0.1 * torch.randn(2000))] * 4, PatchCodec(PatchCodecConfig(codes=8, width=8)))


def nats(model: nn.Module, ids: Tensor, own: Tensor) -> Tensor:
    """Mean cross-entropy of the codes and the end."""
    goal = ids.masked_fill(~own, -100)
    return F.cross_entropy(model(input_ids=ids).logits[:, :-1].flatten(0, 1).float(), goal[:, 1:].flatten(), ignore_index=-100)


@torch.no_grad()
def held_out_nats(model: nn.Module, held: SpeechLines) -> dict[str, float]:
    """Nats a code of the lines' first half, the numbers, and of their second, the sentences."""
    halves = {"numbers": range(len(held.ids) // 2), "sentences": range(len(held.ids) // 2, len(held.ids))}
    return {f"nats a code, held-out {name}": nats(model, *held.batch(list(some))).item() for name, some in halves.items()}
