"""The text corpus of the minis, read from the data folder (MMSPEC_DATA); none of it ships."""

import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path

from mmspec.train.held_out import HeldOut, apart

_BEGINNING = 120  # characters of the shortest prompt that is made of a story


def split(texts: Sequence[str]) -> HeldOut:
    """Hold every twentieth document out, unless one that begins alike is trained on: prompts are beginnings."""
    keys = [text[:_BEGINNING] for text in texts]
    parts = [[number for number in range(len(texts)) if (number % 20 == 0) == held] for held in (False, True)]
    train, held = ([keys[number] for number in part] for part in parts)
    found = apart(train, held, "documents")
    return HeldOut(tuple(parts[0]), tuple(parts[1][place] for place in found.held), found.keys)


def training_documents(data: Path) -> list[str]:
    """Return the documents that are not held out."""
    texts = documents(data)
    return [texts[number] for number in split(texts).train]


def documents(data: Path) -> list[str]:
    """Return one string a document; `split` says which are held out."""

    def rows(path):
        with gzip.open(data / path, "rt", encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    sums = [f"Question: {r['question']}\nAnswer: {re.sub('<<.*?>>', '', r['answer'])}" for r in rows("gsm8k/train.jsonl.gz")]
    stories = [f"Story: {r['title']}\n\n" + "\n".join(r["pages"]) for r in rows("african-storybook/stories_en.jsonl.gz")]
    with gzip.open(data / "tinyshakespeare/input.txt.gz", "rt", encoding="utf-8") as file:
        speeches = file.read().strip().split("\n\n")
    plays = ["Play:\n\n" + "\n\n".join(speeches[i : i + 12]) for i in range(0, len(speeches), 12)]
    return [text for kind in (sums, stories, plays) for text in kind]


def openings(held: list[str]) -> list[str]:
    """Return example prompts from held-out documents: worded sums up to the answer, stories and plays up to a few words."""
    sums = [text.split("Answer:")[0] + "Answer:" for text in held if "Answer:" in text]
    others = [[text[:width].rsplit(" ", 1)[0] for text in held if text.startswith(kind)] for kind, width in (("Story", 120), ("Play", 160))]
    return sums[:8] + others[0][:4] + others[1][:4]
