"""`mmspec image`: generate pictures by any method, or by two methods side by side."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from mmspec.commands import common
from mmspec.utils.files import whole
from mmspec.utils.places import Writes
from mmspec.utils.screen import spinner

EXAMPLES = """Examples:

\b
  mmspec image "a large red star top left" --top-p 0.8
  mmspec image "a small green heart top right and a large blue ring bottom left" --top-p 0.8 --method jacobi --out scene.png --seed 3
  mmspec image "a small orange cross bottom right" --grid 8 --top-p 0.8
  mmspec image "a large purple diamond top right" --top-p 0.8 --compare plain --json
  mmspec image "ankle boot" --model vision-fashion --window auto
  mmspec image "ankle boot" --model continuous --method path --compare plain
  mmspec image bag --model continuous --method aligned --sigma-out 0.15 --head-steps 8
  mmspec image bag --model continuous --method chain --head-steps 64 --draft-steps 14 --compare plain
  mmspec image "a cat in the rain" --model ./janus --device cuda --dtype bfloat16
  mmspec image 207 --model c2i_B_256.pt --decoder vq_ds16_c2i.pt --guidance 4
  mmspec image "at night" --model ./GLM-Image --image street.png --size 512
  mmspec image "a cat" --model ./anole --decoder vqgan.ckpt --guidance 3 --negative blurry
"""
OUT, BATCH, MOST = "mmspec-image.png", 16, 1024
CHAINS = ("chain", "path", "stepwise", "block")
"""Methods for continuous tokens that read --draft-steps."""
_METHOD = "plain, jacobi, scd, ...; of continuous tokens plain, path, aligned, density, ... (mmspec models lists them and the defaults)."
_WINDOW = "Tokens scored per forward, or auto for the fastest. For continuous tokens: draft tokens plus 1."
_SIGMA = "Of continuous tokens: the noise on every token that is a part of the distribution, in a token's deviations."
_DRIFT = "Total variation a lossy method may spend on a picture; then it is exact."
_SIZE = "Pixels a side, or HEIGHTxWIDTH, for models that draw several sizes."
METHOD = Annotated[str | None, common.option(common.HOW, _METHOD, metavar="NAME")]
WINDOW = Annotated[str | None, common.option(common.HOW, _WINDOW, metavar="N")]
BUDGET = Annotated[float | None, common.option(common.HOW, _DRIFT, metavar="X")]
GUIDANCE = Annotated[
    float | None,
    common.option(common.DRAWING, "Scale of classifier-free guidance; 1 for none. Own models of classes have a default of 2.", metavar="X"),
]
HEAD_STEPS = Annotated[int | None, common.option(common.DRAWING, "Of continuous tokens: steps of the head's chain.", metavar="N")]
SIGMA_OUT = Annotated[float | None, common.option(common.DRAWING, _SIGMA, metavar="X")]
_DRAFT_STEPS = (
    "Of continuous tokens: steps of the head's chain drafted beside the current one, 0 to 31, or auto; --method chain has a default."
)
DRAFT_STEPS = Annotated[str | None, common.option(common.HOW, _DRAFT_STEPS, metavar="N")]
TEMPERATURE = Annotated[float | None, common.option(common.DRAWING, "1 by default; 0 is greedy decoding.", metavar="T")]
TOP_K = Annotated[int | None, common.option(common.DRAWING, "Draw from the K most likely codes only.", metavar="K")]
TOP_P = Annotated[float | None, common.option(common.DRAWING, "Draw from the smallest set with total probability P.", metavar="P")]
NEGATIVE = Annotated[str | None, common.option(common.DRAWING, "A text that guidance leads away from.", metavar="TEXT")]
IMAGE = Annotated[
    list[str] | None, common.option(common.WHAT, "A picture that the prompt is about (GLM-Image); may be given again.", metavar="FILE")
]
_DRAFTER = "A folder that vision/train_drafter.py wrote, or a smaller image model; then the method is eagle or assisted-jacobi."
DRAFTER = Annotated[str | None, common.option(common.HOW, _DRAFTER, metavar="PATH")]
_DECODER = "The file of the picture decoder, for LlamaGen files, Chameleon, Anole and Lumina-mGPT."
DECODER = Annotated[str | None, common.option(common.WHAT, _DECODER, metavar="FILE")]
_INIT = "How the far end of a Jacobi window begins, instead of the method's own way."
_CAPTIONS = "The folder of the T5 encoder, for LlamaGen files of captions."
CAPTIONS = Annotated[str | None, common.option(common.WHAT, _CAPTIONS, metavar="PATH")]
SEED = Annotated[int, common.option(common.DRAWING, "Picture r is drawn with SEED + r; 0 by default.", metavar="SEED")]
_MODEL = "mini (default), vision-fashion, continuous, continuous-mixture, continuous-masked, a folder or a hub name."
MODEL = Annotated[str, common.option(common.WHAT, _MODEL, metavar="PATH")]


def image(
    prompt: Annotated[str | None, typer.Argument(help="What to draw: a caption, or a class; - reads standard input.")] = None,
    model: MODEL = "mini",
    decoder: DECODER = None,
    captions: CAPTIONS = None,
    image: IMAGE = None,
    device: common.DEVICE = None,
    dtype: common.DTYPE = None,
    method: METHOD = None,
    drafter: DRAFTER = None,
    compare: Annotated[str | None, common.option(common.HOW, "Generate by this method too, and show both.", metavar="NAME")] = None,
    window: WINDOW = None,
    draft_steps: DRAFT_STEPS = None,
    drift_budget: BUDGET = None,
    tree: common.TREE = None,
    init: Annotated[str | None, common.option(common.HOW, _INIT, metavar="NAME")] = None,
    guidance: GUIDANCE = None,
    negative: NEGATIVE = None,
    temperature: TEMPERATURE = None,
    top_k: TOP_K = None,
    top_p: TOP_P = None,
    head_steps: HEAD_STEPS = None,
    sigma_out: SIGMA_OUT = None,
    seed: SEED = 0,
    size: Annotated[str | None, common.option(common.DRAWING, _SIZE, metavar="N")] = None,
    grid: Annotated[int, common.option(common.FILES, "Draw N pictures, on one sheet.", metavar="N")] = 1,
    out: Annotated[str, common.option(common.FILES, f"The picture file; {OUT} by default.", metavar="FILE"), Writes()] = OUT,
    as_json: common.JSON = False,
    verbose: common.VERBOSE = False,
) -> None:
    """Generate pictures: those of plain decoding or of the same distribution, in fewer forwards. Lossy methods report their drift."""
    from mmspec.run.arguments import check

    if not 1 <= grid <= MOST:
        raise ValueError(f"--grid is {grid}: draw 1 to {MOST} pictures; for more take the job mmspec recipe vision/generate_batch.py")
    heat = 1.0 if temperature is None else temperature
    check(drift_budget=drift_budget, temperature=heat, top_k=top_k, top_p=top_p, guidance=guidance)
    if method in ("plain", "chain") and compare is None:
        common.refuse_unread(
            f"is for methods that draft, and {method} decodes one token a forward: leave it out",
            "--window",
            "--drift-budget",
            "--tree",
            "--init",
        )
    prompt = sys.stdin.read().strip() if prompt == "-" else prompt
    options = {
        "window": _count("window", window, "tokens"),
        "drift_budget": drift_budget,
        "tree": None if tree is None else common.tree_of(tree),
        "init": init,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "size": _size(size),
    }
    options |= {"head_steps": head_steps, "sigma_out": sigma_out, "draft_steps": _count("draft-steps", draft_steps, "steps")}
    options = {name: value for name, value in options.items() if value is not None}
    with whole(out, binary=True) as sink:  # before heavy imports, so that a place that cannot be written to is reported at once
        common.begin(verbose)
        from mmspec.vision.quality.contact_sheets import picture_format

        form = picture_format(out)
        given = {
            "model": model,
            "device": "auto" if device is None else device,
            "dtype": "float32" if dtype is None else dtype,
            "guidance": guidance,
            "seed": seed,
            "grid": grid,
            "decoder": decoder,
            "captions": captions,
            "images": image or [],
            "negative": negative,
            "drafter": drafter,
        }
        request, draws = _drawn(prompt, [method] + ([] if compare is None else [compare]), options, given)
        sink.write(_page(draws, form))
    if as_json:
        common.emit(_found(request, draws, out))
    else:
        _show(draws, out)


@dataclass(frozen=True)
class Drawn:
    """Pictures and figures of one method."""

    method: str
    images: list[Any]
    codes: Any  # [B, height, width], or vectors [B, height, width, d]
    totals: Any
    distribution: dict[str, Any]  # for continuous tokens: the head, and the settings that determine its distribution


def _drawn(prompt: str | None, methods: list[str | None], options: dict[str, Any], given: dict[str, Any]) -> tuple[dict, list[Drawn]]:
    """Return the prompt, and the result of each method."""
    from mmspec.loading import vision as models
    from mmspec.loading.text import device_of
    from mmspec.vision.codes.registry import method_of
    from mmspec.vision.continuous.methods import way_of

    continuous = models.is_continuous(given["model"])
    for name in (each for each in methods if each is not None):
        (way_of if continuous else method_of)(name)  # unknown names are reported before anything is loaded
    _check_for_codes(continuous, given["model"], options)
    own = {"decoder": given["decoder"], "captions": given["captions"]}
    if models.is_file_model(given["model"]):
        own["size"] = options.pop("size", None)
    with spinner(f"loading {given['model']}"):
        own = {name: value for name, value in own.items() if value is not None}
        loaded = models.load_image_model(given["model"], given["dtype"], device_of(given["device"]), **own)
    models.check_decoder(loaded)
    loaded = models.guided_from(loaded, given["negative"], given["guidance"])
    loaded = models.with_image_drafter(loaded, given["drafter"])
    usual = models.drafting_method(loaded, methods, given["drafter"])
    names = [usual if method is None else method for method in methods]
    scale = given["guidance"] if given["guidance"] is not None else loaded.guidance
    prompts = models.with_images(loaded, loaded.prompts(prompt, given["grid"]), given["images"])
    seeds = [given["seed"] + row for row in range(given["grid"])]
    for line in loaded.unread(prompts[:1]):
        common.note(line)
    options = options | {"guidance": scale}
    total = len(names) * len(prompts) * loaded.cells
    with common.progress("picture" if len(prompts) == 1 else "pictures", total) as done:
        draws = [_draw(loaded, name, names, prompts, seeds, options, done) for name in names]
    extra = {name: given[name] for name in ("images", "negative", "drafter") if given[name]}
    about = {"prompt": prompt, "model": given["model"], "seeds": seeds, "settings": options} | extra
    return about, draws


def _check_for_codes(continuous: bool, model: str, options: dict[str, Any]) -> None:
    """Raise ValueError for options of continuous tokens if the model generates codes."""
    for name in ("head_steps", "sigma_out", "draft_steps"):
        if not continuous and name in options:
            shown = f"--{name.replace('_', '-')}"
            raise ValueError(f"{shown} is for continuous tokens, and {model} writes codes: leave it out, or take --model continuous")


def _draw(
    loaded: Any, name: str, names: list[str], prompts: list, seeds: list[int], options: dict[str, Any], done: Callable[..., Any]
) -> Drawn:
    import torch

    from mmspec.jobs.pictures import PictureTotals, drawn_by, generate_options
    from mmspec.vision import generate

    totals, images, codes, shown = PictureTotals(), [], [], 0
    settings = generate_options(loaded, options)
    if name in ("plain", "chain"):  # beside a method that drafts: these options are that one's
        settings = {key: value for key, value in settings.items() if key not in ("window", "drift_budget", "tree", "init")}
    if len(names) > 1 and name not in CHAINS:
        settings.pop("draft_steps", None)

    def committed(step: Any) -> None:
        nonlocal shown
        count = sum(len(values) for values in step.committed.values)
        shown += count
        done(count, name)

    for first in range(0, len(prompts), BATCH):
        part = slice(first, first + BATCH)
        out = generate(loaded.model, prompts[part], method=name, seed=seeds[part], on_step=committed, **settings)
        totals.add(out)
        images += out.images
        codes.append(out.tokens)
        done((first + len(out.images)) * loaded.cells - shown, name)  # for models without steps
        shown = (first + len(out.images)) * loaded.cells
    return Drawn(name, images, torch.cat(codes), totals, drawn_by(loaded, name, options))


def _page(draws: list[Drawn], form: str) -> bytes:
    """Return the picture, or a sheet of all pictures; with two methods one labelled row for each."""
    from mmspec.vision.quality.contact_sheets import picture_bytes, sheet

    pictures = draws[0].images
    if len(draws) > 1:
        figures = [f"{d.method}: {d.totals.forwards:.0f} forwards, {d.totals.seconds:.2f} s" for d in draws]
        return picture_bytes(sheet([d.images for d in draws], figures), form)
    if len(pictures) == 1:
        return picture_bytes(pictures[0].convert("RGB"), form)
    columns = min(8, len(pictures), max(1, round(len(pictures) ** 0.5 * 1.5)))
    return picture_bytes(sheet([pictures[first : first + columns] for first in range(0, len(pictures), columns)]), form)


def _same(first: Drawn, second: Drawn) -> int:
    """Return the number of pictures that are equal in both results."""
    return int((first.codes == second.codes).flatten(1).all(1).sum())


def _found(request: dict[str, Any], draws: list[Drawn], out: str) -> dict[str, Any]:
    rows = [{"method": d.method, **d.distribution, **d.totals.to_dict(), **_values(d)} for d in draws]
    more = {"compare": rows[1] | {"same_pictures": _same(*draws)}} if len(rows) > 1 else {}
    return request | {"out": out} | rows[0] | more


def _values(drawn: Drawn) -> dict[str, Any]:
    """Return the codes, or vectors rounded to visible precision."""
    if not drawn.distribution:
        return {"codes": drawn.codes.tolist()}
    return {"vectors": [[[[round(x, 4) for x in cell] for cell in row] for row in rows] for rows in drawn.codes.tolist()]}


def _show(draws: list[Drawn], out: str) -> None:
    vectors = bool(draws[0].distribution)
    head, drifts, kind = (["head"], [], "tokens") if vectors else ([], ["drift"], "codes")
    table = Table("method", *head, "forwards", f"{kind} a forward", "seconds", Column("exactness", no_wrap=True), *drifts)
    for drawn in draws:
        totals = drawn.totals
        figures = [f"{totals.forwards:.1f}", f"{totals.compression:.2f}", f"{totals.seconds / totals.pictures:.2f}"]
        drift = [] if vectors else ["" if totals.drift is None else f"{totals.drift / totals.pictures:.2f}"]
        table.add_row(drawn.method, *([drawn.distribution["head"]] if vectors else []), *figures, totals.exactness, *drift)
    show = common.console(False)
    show.print(table)
    count = len(draws[0].images)
    what = "1 picture" if count == 1 else f"{count} pictures, figures are a picture's"
    same = f"; {_same(*draws)} of {count} the same code for code by both methods" if len(draws) > 1 else ""
    if vectors and len(draws) > 1:
        same = "; a distribution-exact method draws by the same distribution, not the same picture"
        if draws[0].distribution["head"] != draws[1].distribution["head"]:
            same = "; the two heads are two models, with a distribution each"
    show.print(f"{what}{same}: {out}", soft_wrap=True)


def _count(option: str, text: str | None, unit: str) -> int | str | None:
    if text is None or text == "auto":
        return text
    if not text.lstrip("-").isdigit():
        raise ValueError(f"--{option} is {text!r}: give a number of {unit}, or auto")
    return int(text)


def _size(text: str | None) -> int | tuple[int, int] | None:
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdigit() for part in parts):
        raise ValueError(f"--size is {text!r}: give pixels a side such as 512, or HEIGHTxWIDTH such as 512x768")
    return int(parts[0]) if len(parts) == 1 else (int(parts[0]), int(parts[1]))
