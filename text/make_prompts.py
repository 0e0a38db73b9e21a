"""Write prompts of eight kinds for training a drafter: none of them is a prompt of Spec-Bench, of GSM8K's test set or of HumanEval.

    python text/make_prompts.py --out prompts.jsonl --each 192
    python text/train_drafter.py eagle3 --model FOLDER --prompts prompts.jsonl ...

The kinds are those of `mmspec bench --suite real`. Requests and questions come from templates; translations, summaries and passages from
the African Storybook's stories (CC BY); worded sums, in two forms, from GSM8K's training set (MIT); code from the standard library's
functions. Data sets are found through MMSPEC_DATA; kinds without one are left out. Kinds take turns, in
random order within each.
"""

import ast
import gzip
import json
import os
import random
import sysconfig
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path

from mmspec.utils.files import whole
from mmspec.utils.places import RecipeParser

REQUESTS = (
    "Write a short story about {}.",
    "Write an email to a colleague about {}. Be polite and brief.",
    "Explain {} to a child of ten. Give two examples.",
    "Imagine you are a guide in a museum. Tell your visitors about {}.",
    "What are the advantages and disadvantages of {}? Compare them in a table.",
    "Draft a blog post about {} with an introduction, three sections and a conclusion.",
    "Give step-by-step instructions for somebody who knows nothing about {}.",
    "Describe the history of {} and name the most important events.",
    "Discuss how {} has changed the way people live. Support your answer with facts.",
    "Write a Python program that keeps a list of notes about {} and prints them sorted by date.",
    "Pretend you are an expert on {}. Answer this question as such: what do most people get wrong?",
    "List five questions that a teacher could ask about {}, each with its answer.",
)
TOPICS = (
    *(
        "the tides",
        "vaccination",
        "bicycles",
        "the French Revolution",
        "photosynthesis",
        "public libraries",
        "baking bread",
        "electric cars",
    ),
    *("black holes", "chess", "growing tomatoes", "the printing press", "inflation", "working from home", "whales", "the stock market"),
    *("volcanoes", "learning a language", "satellites", "the Roman Empire", "sleep", "recycling", "neural networks", "mountain weather"),
)
QUESTIONS = {
    "What is the capital of {}?": ("Norway", "Kenya", "Peru", "Vietnam", "Canada", "Turkey", "Nigeria", "Chile", "Iceland", "Thailand"),
    "When did {} end?": ("the Second World War", "the Bronze Age", "the Cold War", "the Ming dynasty", "apartheid", "the Crimean War"),
    "Who wrote {}?": ("Hamlet", "War and Peace", "The Odyssey", "Don Quixote", "Frankenstein", "The Hobbit", "Emma", "Dracula"),
    "Who invented {}?": ("the telephone", "the light bulb", "dynamite", "the steam engine", "penicillin", "the World Wide Web"),
    "Where is {}?": ("the Eiffel Tower", "Machu Picchu", "Lake Victoria", "the Sahara", "Mount Fuji", "the Great Barrier Reef"),
    "How many {} are there?": (
        "planets in the solar system",
        "bones in the human body",
        "countries in Europe",
        "players in a football team",
    ),
    "What does {} stand for?": ("NASA", "DNA", "HTML", "UNESCO", "GDP", "RAM", "AIDS", "PDF"),
    "How long is {}?": ("the Nile", "a marathon", "the Great Wall of China", "a football match", "the Amazon", "a light year"),
    "Who was {}?": ("Marie Curie", "Napoleon", "Cleopatra", "Nelson Mandela", "Galileo", "Frida Kahlo", "Charles Darwin", "Beethoven"),
    "What is the largest {} in the world?": ("ocean", "desert", "animal", "country", "island", "city", "lake", "bird"),
    "Why is {}?": ("the sky blue", "the sea salty", "Pluto no planet", "gold expensive", "blood red", "the Dead Sea so salty"),
    "Which language is spoken in {}?": ("Brazil", "Austria", "Egypt", "Iran", "Mexico", "Angola", "Belgium", "the Philippines"),
}
ABOUT_STORIES = ("Who is this story about?", "Where does the story take place?", "What happened at the end?", "Why did they do it?")


def rows(path: Path) -> list[dict]:
    """The records of a file; none where it is missing."""
    if not path.is_file():
        return []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def pieces(pages: list[str], most: int) -> Iterator[str]:
    """Consecutive pages joined, up to `most` characters each."""
    text = ""
    for page in pages:
        if text and len(text) + len(page) > most:
            yield text
            text = ""
        text = f"{text} {page}".strip()
    if text:
        yield text


def functions() -> Iterator[str]:
    """Signatures and docstrings of top-level functions of the standard library."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        source = path.read_text(encoding="utf-8", errors="ignore")
        lines = source.splitlines()
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) and len(node.body) > 1:
                text = "\n".join(lines[node.lineno - 1 : node.body[0].end_lineno])
                if 120 < len(text) < 700:
                    yield text + "\n"


def prompts(data: Path) -> dict[str, list[str]]:
    sums = [row["question"] for row in rows(data / "gsm8k/train.jsonl.gz")]
    english = [story["pages"] for story in rows(data / "african-storybook/stories_en.jsonl.gz")]
    french = [story["pages"] for story in rows(data / "african-storybook/stories_fr.jsonl.gz")]
    parts = [list(pieces(pages, 500)) for pages in english]
    passages = [(text, other) for own in parts for text, other in pairwise(own)]
    return {
        "conversation": [form.format(topic) for form, topic in product(REQUESTS, TOPICS)],
        "translation": [f"Translate French to English: {text}" for pages in french for text in pieces(pages, 160)],
        "summarization": [f"Summarize: {text}\nSummary:" for own in parts for text in own],
        "qa": [form.format(each) for form, names in QUESTIONS.items() for each in names],
        "math": sums[::2],
        "rag": [f"{one}\n\n{two}\n\nQuestion: {ABOUT_STORIES[i % 4]}\nAnswer:" for i, (one, two) in enumerate(passages)],
        "gsm8k": [f"Question: {question}\nAnswer:" for question in sums[1::2]],
        "code": list(functions()),
    }


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/prompts.jsonl"))
    parser.add_argument("--each", type=int, default=192, help="prompts of each kind; where a kind has fewer, they repeat")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="four of each kind")
    args = parser.parse_args()
    data = Path(os.environ.get("MMSPEC_DATA", "../shared/data"))
    found = prompts(data)
    missing = [kind for kind, texts in found.items() if not texts]
    if missing:
        print(f"left out for want of data in {data}: {', '.join(missing)}")
    found = {kind: texts for kind, texts in found.items() if texts}
    for texts in found.values():
        random.Random(args.seed).shuffle(texts)
    each = 4 if args.smoke else args.each
    turns = [{"kind": kind, "prompt": texts[i % len(texts)]} for i in range(each) for kind, texts in found.items()]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with whole(args.out) as file:
        file.writelines(json.dumps(turn, ensure_ascii=False) + "\n" for turn in turns)
    counts = ", ".join(f"{kind} {len(texts)}" for kind, texts in found.items())
    print(f"{len(turns)} prompts in {args.out}; different ones by kind: {counts}")


if __name__ == "__main__":
    main()
