"""`mmspec models`: the minis that ship, the model families that run, and every name that a request takes, with what it is and promises.

Drafters and accept rules are the registry's: what each is, needs and refuses (`mmspec/run/registry.py`).
"""

from importlib import import_module
from typing import Any

from rich.table import Table

from mmspec.commands import common
from mmspec.minis import shipped_drafters
from mmspec.run.registry import ACCEPT, RULES, SOURCES, build

EXAMPLES = """Examples:

\b
  mmspec models
  mmspec models --json
"""
_MINI_FACTS = 3  # lines of a card that are shown


def models(as_json: common.JSON = False, verbose: common.VERBOSE = False) -> None:
    """List minis, model families, drafters and accept rules with what each needs and refuses, views, methods and modes."""
    common.begin(verbose)
    found = {"minis": minis(), "families": families(), "drafters": drafters(), "accept_rules": accept_rules()}
    found["views"] = views()
    found["picture_methods"] = picture_methods()
    found["published_methods"] = published_methods()
    found["continuous_methods"] = continuous_methods()
    found["recommendation_modes"] = recommendation_modes()
    found["recommendation_drafters"] = recommendation_drafters()
    if as_json:
        common.emit(found)
        return
    show = common.console(as_json)
    for title, rows in found.items():
        table = Table(*(key.replace("_", " ") for key in rows[0]), title=title.replace("_", " "), title_justify="left", title_style="bold")
        for row in rows:
            table.add_row(*(str(value) for value in row.values()))
        show.print(table)


def minis() -> list[dict[str, Any]]:
    """Return the shipped minis, with a note for those that are not installed."""
    from mmspec.minis import NAMES, load

    rows = []
    for name in NAMES:
        try:
            mini = load(name)
        except FileNotFoundError as error:
            rows.append({"name": name, "target": "", "drafters": "", "card": str(error)})
            continue
        others = ", ".join(f"{key} {_size(model)}" for key, model in mini.drafters.items())
        facts = [line.strip("# ").strip() for line in mini.card.splitlines() if line.strip()]
        rows.append({"name": name, "target": _size(mini.target), "drafters": others, "card": " ".join(facts[:_MINI_FACTS])})
    return rows


def _size(model: Any) -> str:
    """Return the number of parameters; "counts" for models without parameters."""
    from mmspec.speech.families.base import SpeechModel
    from mmspec.vision import ContinuousPictures, ImageModel

    model = model.model if isinstance(model, (ContinuousPictures, ImageModel, SpeechModel)) else model
    return f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M" if hasattr(model, "parameters") else "counts"


def families() -> list[dict[str, str]]:
    """Return the models that `mmspec.text`, `mmspec.vision`, `mmspec.speech` and `mmspec.recsys` support."""
    from mmspec.models.families.registry import HEARS, SEES
    from mmspec.speech.families import ADAPTERS as SPEAKING
    from mmspec.vision.families import ADAPTERS

    decoders = "decoder-only models with full, sliding-window or chunked attention (Llama, Qwen, Mistral, Gemma, GPT-2, BLOOM, ...)"
    kinds = "T5, BART, Marian, Pegasus, M2M100, LED, T5Gemma, Whisper, Moonshine and others; docs/families.md lists every architecture"
    return [
        {"kind": "causal", "models": decoders},
        {"kind": "encoder-decoder", "models": kinds},
        {"kind": "models that see", "models": ", ".join(SEES)},
        {"kind": "speech language models", "models": ", ".join(HEARS)},
        {"kind": "pictures", "models": ", ".join(ADAPTERS)},
        {"kind": "pictures of continuous tokens", "models": "ContinuousAR with a diffusion or a mixture head, MaskedAR"},
        {"kind": "speech", "models": f"{', '.join(SPEAKING)}, and causal models that write a codec's codes"},
        {"kind": "recommendations", "models": "causal and T5 models that write items as the paths of a catalogue"},
    ]


def drafters() -> list[dict[str, str]]:
    """Return the names for `--drafter`, with what each is, needs and refuses."""
    needs = "the target's tokenizer, or mmspec.text.aligned_drafter"
    rows = [_row("model", "a smaller model: the mini's own, or any by path", needs)]
    rows += [_row(name, entry.is_a, entry.needs, entry.refuses) for name, entry in SOURCES.items()]
    rows.append(_row("cascade:MIDDLE,INNER", "a drafter for which another drafts", "MIDDLE a model or of the target's own", "tree, view"))
    rows.append(_row("relay:FIRST,N,THEN", "N draft tokens by one drafter, the others of a round by another", refuses="tree, view"))
    rows += [_row(name, f"the mini's own: {_net(name)}", "mini text", "view") for name in shipped_drafters()]
    rows.append(_row("text", "mini vlm's own: a small language model", "mini vlm"))
    rows.append(_row("vlm", "mini vlm's own: a small model that reads images", "mini vlm"))
    others = sorted(set(shipped_drafters("vlm")) - set(shipped_drafters()))
    rows += [_row(name, f"mini vlm's own: {_net(name)}", "mini vlm", "view") for name in others]
    rows.append(_row("FOLDER", "a trained drafter, this project's or a published one", "the target it was trained for", "view"))
    rows.append(_row("FILE.npy", _first_line("mmspec.drafters.retrieval.datastore:Datastore"), "the target's tokenizer", "tree, view"))
    return [*rows, _row("FILE.npz", _first_line("mmspec.drafters.retrieval.pools:Pools"), "the target's tokenizer", "tree, view")]


def _row(name: str, is_a: str, needs: str = "", refuses: str = "") -> dict[str, str]:
    return {"name": name, "is_a": is_a, "needs": needs, "refuses": refuses}


def _net(name: str) -> str:
    """Return the first line of a trained net's docstring."""
    from mmspec.drafters.checkpoints.nets import net_class

    return (net_class(name).__doc__ or "").strip().splitlines()[0].rstrip(".")


def _first_line(where: str) -> str:
    """Return the first line of the module that defines a class: its method and source."""
    module = import_module(where.partition(":")[0])
    return (module.__doc__ or "").strip().splitlines()[0].rstrip(".")


def views() -> list[dict[str, str]]:
    """Return the names for `--view`."""
    from mmspec.text.views import NAMES

    ideas = {
        "drop": "the words alone",
        "newline": "a newline for every picture",
        "caption": "a caption (--caption) for every picture",
        "own": "the pixels, through its own vision encoder",
        "pooled": "the pixels, patches averaged two by two",
        "pruned": "the pixels, without the half of their positions that the target attends to least",
    }
    return [*({"name": name, "reads": ideas[name]} for name in NAMES), {"name": "own+newline", "reads": "several in one forward, mixed"}]


def accept_rules() -> list[dict[str, str]]:
    """Return the names for `--accept`, with the exactness of each, what it is, needs and refuses."""
    rows = [{**_row("exact", "greedy at temperature 0, else coupled"), "exactness": "token-exact"}]
    for name, entry in RULES.items():
        exactness = build(name, ACCEPT, "accept rule").exactness
        rows.append({**_row(name, entry.is_a, entry.needs, entry.refuses), "exactness": exactness})
    return [{"name": row["name"], "exactness": row["exactness"], **row} for row in rows]


def picture_methods() -> list[dict[str, str]]:
    """Return the names for `mmspec image --method`, from the table in the docstring of `mmspec.vision.codes.methods`."""
    from mmspec.vision.codes import methods
    from mmspec.vision.plan import default_method

    lines = [line.strip("| ").split(" | ") for line in (methods.__doc__ or "").splitlines() if line.startswith("| ")]
    table = {name: cells for cells in lines[1:] for name in cells[0].split(", ")}
    rows = []
    for name in methods.METHODS:
        _, draft_tokens, rule, exactness = table[name]
        shown = f"{name} (default)" if name == default_method() else name
        rows.append({"name": shown, "exactness": exactness, "rule": rule, "draft_tokens": draft_tokens})
    return rows


def published_methods() -> list[dict[str, str]]:
    """Return the published settings for `mmspec image --method`, from the table in the docstring of `mmspec.vision.codes.published`."""
    from mmspec.vision.codes import published

    lines = [line.strip("| ").split(" | ") for line in (published.__doc__ or "").splitlines() if line.startswith("| ")]
    table = {cells[0]: cells[1:] for cells in lines[1:]}
    return [{"name": name, "setting": table[name][0], "taken_from": table[name][1]} for name in published.PUBLISHED]


def continuous_methods() -> list[dict[str, str]]:
    """Return the names for `mmspec image --method` with continuous tokens, from the docstring of `mmspec.vision.continuous.methods`."""
    from mmspec.vision.continuous import methods as continuous

    lines = [line.strip("|").split("|") for line in (continuous.__doc__ or "").splitlines() if line.startswith("| ")]
    table = {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines[1:]}
    rows = []
    for name, way in continuous.CONTINUOUS_METHODS.items():
        value, distribution, rule, exactness = table[name]
        rows.append(
            {
                "name": name,
                "exactness": exactness,
                "heads": ", ".join(way.heads),
                "value": value,
                "distribution": distribution,
                "rule": rule,
            }
        )
    return rows


def recommendation_modes() -> list[dict[str, str]]:
    """Return the names for `mmspec recommend --mode`."""
    import torch

    from mmspec.core.beams.trie import Trie
    from mmspec.recsys import METHODS

    trie, rows = Trie.of(torch.zeros(1, 1, dtype=torch.long)), []
    for name, mode in METHODS.items():
        drafts = "never" if mode.plain else "wide beams"
        rows.append({"name": name, "exactness": mode.rule(trie, 1, 1.0).exactness, "drafts": drafts, "idea": mode.about})
    return rows


def recommendation_drafters() -> list[dict[str, str]]:
    """Return the values for `mmspec recommend --drafter`."""
    where = {"FOLDER (a trained head)": "mmspec.drafters.heads.recurrent:RecurrentHead"}
    where |= {"FILE.safetensors": "mmspec.recsys.retriever:Retriever", "FILE.safetensors (n-gram)": "mmspec.recsys.ngram:NGram"}
    small = "a small model: the mini's own (model), or any by path"
    return [{"name": "model, FOLDER", "idea": small}, *({"name": name, "idea": _first_line(place)} for name, place in where.items())]
