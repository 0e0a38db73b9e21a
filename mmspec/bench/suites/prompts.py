"""Prompts of eight kinds: Spec-Bench's six, GSM8K and HumanEval, from MMSPEC_DATA; short ones of our own where a data set is missing."""

import gzip
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmspec.utils.names import unknown

SPEC_BENCH = {
    "conversation": ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"),
    "translation": ("translation",),
    "summarization": ("summarization",),
    "qa": ("qa",),
    "math": ("math_reasoning",),
    "rag": ("rag",),
}
"""Kind -> categories of Spec-Bench (Xia et al. 2024). Conversations are MT-Bench's, of which the first turn is asked."""
KINDS = (*SPEC_BENCH, "gsm8k", "humaneval")
_OWN = {
    "conversation": (
        "Write a short letter to a neighbour whose apple tree leans over the fence. Be friendly, and offer to help with the picking.",
        "You are the keeper of a lighthouse. Tell a visitor what you did yesterday, from morning to night.",
        "Three friends sit in a row. Ana sits left of Ben, and Cleo sits right of Ben. Who sits in the middle? Explain your steps.",
        "Explain to a child of ten why the moon changes its shape in the course of a month.",
    ),
    "translation": (
        "Translate German to English: Der Zug nach Hamburg hat heute zwanzig Minuten Verspätung, weil es in der Nacht geschneit hat.",
        "Translate German to English: Meine Schwester backt jeden Sonntag ein Brot und bringt es unseren Großeltern.",
        "Translate German to English: Wer im Garten arbeitet, sollte im Sommer einen Hut tragen und viel Wasser trinken.",
        "Translate German to English: Die Bibliothek schließt um sechs Uhr, aber die Bücher kann man auch am Abend zurückgeben.",
    ),
    "summarization": (
        "Summarize: The town council met on Monday to discuss the old bridge. Engineers found rust in two of its four arches, and lorries "
        "have been sent round by the mill since March. Repairing the bridge would take a year and cost two million; a new one would cost "
        "four. The council will ask the residents before it decides in June.\nSummary:",
        "Summarize: A group of pupils has counted the birds around their school for ten years. Sparrows have become rarer, blackbirds have "
        "not, and since a pond was dug there are herons, too. Their teacher has sent the tables to the university, where they are used in "
        "a study of gardens in towns.\nSummary:",
        "Summarize: The night train runs again from next week. It leaves at ten, stops in four towns and arrives at seven in the morning. "
        "Tickets with a bed cost sixty, seats cost twenty, and bicycles travel free until autumn.\nSummary:",
        "Summarize: Baking with less sugar is easier than it sounds. Ripe bananas and dates sweeten a cake, and cinnamon makes it taste "
        "sweeter than it is. Only meringue needs its sugar, as without it the foam collapses.\nSummary:",
    ),
    "qa": (
        "Question: What is the name of the process by which plants make sugar from light, water and air?\nAnswer:",
        "Question: Which river flows through the city of Vienna?\nAnswer:",
        "Question: In what year did people first walk on the moon?\nAnswer:",
        "Question: How many strings does a violin have?\nAnswer:",
    ),
    "math": (
        "A baker sells rolls at 3 for 2 euros. How much do 12 rolls cost? Think step by step.",
        "A cyclist rides 18 km in the first hour and 4 km less in the second. How far does she ride in all? Think step by step.",
        "Tom reads 14 pages a day. How many pages does he read in the 30 days of June? Think step by step.",
        "A box holds 6 eggs. How many boxes are needed for 45 eggs? Think step by step.",
    ),
    "rag": (
        "Harbour seals rest on sandbanks at low tide. They moult in late summer and then spend even more time out of the water.\n\n"
        "Ringed seals live farther north and keep holes open in the ice.\n\nQuestion: When do harbour seals moult?\nAnswer:",
        "The old mill was built in 1742 and ground rye until 1911.\n\nThe new mill beside it was driven by steam and burnt down in 1930."
        "\n\nQuestion: What did the old mill grind?\nAnswer:",
        "Saffron is the dried stigma of a crocus. A gram of it takes about 150 flowers.\n\nTurmeric is a root, and far cheaper.\n\n"
        "Question: How many flowers does a gram of saffron take?\nAnswer:",
        "The tram line 4 runs from the station to the lake every ten minutes.\n\nLine 7 runs from the station to the zoo, on Sundays only."
        "\n\nQuestion: Which line runs to the lake?\nAnswer:",
    ),
    "gsm8k": (
        "Question: Mia has 5 jars with 12 marbles each. She gives 17 marbles away. How many has she left?\nAnswer:",
        "Question: A train has 8 coaches with 60 seats. 412 seats are taken. How many are free?\nAnswer:",
        "Question: A gardener plants 7 rows of 9 tulips and 4 rows of 6 roses. How many flowers are that?\nAnswer:",
        "Question: A ticket costs 4 dollars for children and 9 for adults. What do 3 children and 2 adults pay?\nAnswer:",
    ),
    "humaneval": (
        'def mean(values: list[float]) -> float:\n    """Return the mean of the values.\n    >>> mean([1.0, 3.0])\n    2.0\n    """\n',
        'def count_vowels(text: str) -> int:\n    """Count the vowels of a text.\n    >>> count_vowels("banana")\n    3\n    """\n',
        'def is_sorted(values: list[int]) -> bool:\n    """True if no value is smaller than the one before.\n    >>> is_sorted([1, 2, 2])\n'
        '    True\n    """\n',
        'def merge(one: dict, other: dict) -> dict:\n    """Join two dicts; the second wins.\n    >>> merge({1: 2}, {1: 3})\n'
        '    {1: 3}\n    """\n',
    ),
}


@dataclass(frozen=True)
class BenchPrompt:
    """A prompt with its name, such as "qa/321"; those of our own are named "own/qa/0"."""

    kind: str
    name: str
    text: str


def kinds_of(names: str | None) -> tuple[str, ...]:
    """Return the kinds that a list separated by commas names; all for None. ValueError for unknown ones."""
    asked = KINDS if names is None else tuple(dict.fromkeys(name.strip() for name in names.split(",")))
    for name in asked:
        if name not in KINDS:
            raise unknown("kind of prompts", name, KINDS)
    return asked


def prompts_of(kind: str, data: Path | None = None) -> list[BenchPrompt]:
    """Return every prompt of a kind, in the order of its data set; our own where the data set is missing.

    Args:
        kind: one of `KINDS`.
        data: the folder of data sets; MMSPEC_DATA, else ../shared/data.
    """
    data = data or Path(os.environ.get("MMSPEC_DATA", "../shared/data"))
    if kind in SPEC_BENCH:
        records = _records(data / "spec-bench" / "question.jsonl.gz")
        found = [(each["question_id"], each["turns"][0]) for each in records if each["category"] in SPEC_BENCH[kind]]
    elif kind == "gsm8k":
        found = [(place, f"Question: {each['question']}\nAnswer:") for place, each in enumerate(_records(data / "gsm8k" / "test.jsonl.gz"))]
    else:
        found = [(each["task_id"].split("/")[-1], each["prompt"]) for each in _records(data / "human-eval" / "HumanEval.jsonl.gz")]
    return [BenchPrompt(kind, f"{kind}/{name}", text) for name, text in found] or own_prompts(kind)


def own_prompts(kind: str) -> list[BenchPrompt]:
    """Return the prompts of a kind that were written for this benchmark."""
    return [BenchPrompt(kind, f"own/{kind}/{place}", text) for place, text in enumerate(_OWN[kind])]


def spread_out(found: Sequence[BenchPrompt], count: int) -> list[BenchPrompt]:
    """Return `count` prompts at even distances, so that every category of a kind has its turn; all where there are fewer."""
    if count >= len(found):
        return list(found)
    return [found[place * len(found) // count] for place in range(count)]


def _records(path: Path) -> list[dict]:
    if not path.is_file():
        return []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]
