"""The checks of `mmspec check` for each kind of model: loading, prompts, and the checks of `mmspec.bench`."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mmspec.commands import common

if TYPE_CHECKING:
    from mmspec.run.config import Config

KINDS = ("text", "image", "speech", "recommend")
_NAMES = {"vision": "image", "vision-fashion": "image", "continuous": "image", "continuous-mixture": "image", "continuous-masked": "image"}
_NAMES |= {"speech": "speech", "recsys": "recommend", "recsys-deep": "recommend"}
_TEXTS = ("three five seven", "nine zero one", "two four", "eight")


def kind_of(given: dict[str, Any]) -> str:
    """Return the modality to check: --modality, else that of a mini's name, else text."""
    kind = _NAMES.get(given["model"] or "", "text") if given["modality"] is None else given["modality"]
    if kind not in KINDS:
        raise ValueError(f"unknown modality {kind!r}; valid: {', '.join(KINDS)}")
    return kind


_TEXT_ONLY = ("--view", "--picture", "--margin", "--temperature", "--top-k", "--top-p", "--max-new-tokens", "--config", "--set", "--budget")
_UNREAD = {
    "text": ("--method",),
    "image": (*_TEXT_ONLY, "--drafter", "--accept", "--draft-length", "--tree"),
    "speech": (*_TEXT_ONLY, "--method"),
    "recommend": (*_TEXT_ONLY, "--accept", "--draft-length", "--tree"),
}
"""Kind -> the options that its checks do not read."""


def refuse_unread_options(kind: str, custom: bool) -> None:
    """Raise ValueError for the first given option that a check of `kind`, or of functions of your own, does not read."""
    if custom:
        common.refuse_unread("is not read with --target: leave it out", "--model", "--method", "--view", "--picture", "--prompts")
    common.refuse_unread(f"is not read by the check of {kind}: leave it out", *_UNREAD[kind])


def check_custom(config: "Config", given: dict[str, Any]) -> tuple[list[Any], Any, str, str, str]:
    """Check models that functions return; returns (findings, statistics, model, drafter, exactness)."""
    from mmspec.bench.check.custom import called, pair_of_models
    from mmspec.bench.check.targets import check_target
    from mmspec.bench.check.verify import Plan, step_count, verify
    from mmspec.core.stats import Stats
    from mmspec.loading.text import rule

    found = called(given["target"], "--target")
    target, prompts = found if isinstance(found, tuple) else (found, getattr(found, "prompts", None))
    named = given["drafter"]
    drafter = called(named, "--drafter", target) if named and ":" in named else None if named in (None, "none") else named
    seeds = (config.run.seed, config.run.seed + 100)
    if hasattr(target, "generate"):
        section = config.drafter if isinstance(config.drafter.length, int) else replace(config.drafter, length=4)
        config = replace(config, drafter=section)
        pair = pair_of_models(target, drafter, accept=rule(config), config=config, prompts=prompts)
        plan = Plan(pair.examples[: given["limit"]], seeds, given["margin"], budget=given["budget"] or None)
        with common.progress("check", step_count(pair, plan)) as done:
            findings, stats = verify(pair, replace(plan, done=done))
        return findings, stats, pair.name, named or "none", pair.exactness
    if not hasattr(target, "begin"):
        raise ValueError(
            f"--target {given['target']!r} returned a {type(target).__name__}: return a transformers model, or a Target with begin"
        )
    if not prompts:
        raise ValueError(f"--target {given['target']!r} returned a Target without prompts: return (target, prompts), what its begin takes")
    common.refuse_unread("is read for transformers models only: leave it out", "--budget", "--margin")
    if drafter is not None and not hasattr(drafter, "begin"):
        raise ValueError("--drafter must return a Drafter with begin where the target is no transformers model")
    findings = check_target(target, prompts[: given["limit"]], drafter, seeds=seeds, max_new_tokens=config.run.max_new_tokens)
    return findings, Stats(exactness="token-exact"), type(target).__name__, named or "scripted", "token-exact"


def check_kind(kind: str, config: "Config", given: dict[str, Any]) -> tuple[list[Any], Any, str, str, str]:
    """Check a model of another modality than text; returns (findings, statistics, model, drafter, exactness)."""
    findings, name, drafter = {"image": _image, "speech": _speech, "recommend": _recommend}[kind](config, given)
    from mmspec.core.stats import Stats

    lossy = any("lossy by design" in finding.detail for finding in findings)
    return findings, Stats(), name, drafter, "lossy" if lossy else "exact"


def _device(config: "Config") -> Any:
    from mmspec.utils.devices import device_of

    return device_of(config.target.device)


def _image(config: "Config", given: dict[str, Any]) -> tuple[list[Any], str, str]:
    from mmspec.bench.check.modalities import check_continuous, check_pictures
    from mmspec.loading.vision import is_continuous, load_image_model

    name = given["model"] or "vision"
    loaded = common.waiting(config, partial(load_image_model, name, config.target.dtype, _device(config)))
    prompts = _lines(given) or list(loaded.examples) or ([None] if not loaded.prompted else [])
    if not prompts:
        raise ValueError(f"no prompts: {name} has no examples, so give --prompts FILE")
    method, prompts = given["method"], prompts[: given["limit"]]
    if is_continuous(name):
        findings = check_continuous(loaded.model, prompts, method, seed=config.run.seed)
    else:
        findings = check_pictures(loaded.model, prompts, method, seed=config.run.seed, guidance=loaded.guidance)
    return findings, name, method or "the default method"


def _speech(config: "Config", given: dict[str, Any]) -> tuple[list[Any], str, str]:
    from mmspec.bench.check.modalities import check_speech
    from mmspec.loading.speech import load_speaker
    from mmspec.loading.text import rule

    name = "mini" if given["model"] in (None, "speech") else given["model"]
    loaded = common.waiting(config, partial(load_speaker, name, given["drafter"], config.target.dtype, _device(config)))
    texts = _lines(given) or list(_TEXTS)
    options: dict[str, Any] = {"draft_length": config.drafter.length, "tree": config.drafter.tree}
    findings = check_speech(loaded.model, texts[: given["limit"]], loaded.drafter, accept=rule(config), seed=config.run.seed, **options)
    return findings, loaded.name, loaded.drafter_name


def _recommend(config: "Config", given: dict[str, Any]) -> tuple[list[Any], str, str]:
    from mmspec.bench.check.modalities import check_recommendations
    from mmspec.loading.recsys import MINIS, load_recommender
    from mmspec.minis.shop import Shop

    name = "mini" if given["model"] in (None, "recsys") else given["model"]
    loaded = common.waiting(config, partial(load_recommender, name, None, given["drafter"], config.target.dtype, _device(config)))
    lines = _lines(given)
    if lines:
        whole = isinstance(loaded.catalogue.items[0], int)
        histories = [[int(part) if whole else part.strip() for part in line.split(",")] for line in lines]
    elif name in MINIS:
        histories = [items[:-1] for items in Shop.of().histories(list(range(given["limit"])), seed=2)]
    else:
        raise ValueError(f"no histories: give --prompts FILE, with a user's items on each line, such as {loaded.catalogue.items[0]},...")
    findings = check_recommendations(
        loaded.model, histories[: given["limit"]], loaded.catalogue, loaded.drafter, seed=config.run.seed, mode=given["method"]
    )
    return findings, loaded.name, loaded.drafter_name


def _lines(given: dict[str, Any]) -> list[str]:
    from mmspec.utils.files import read_prompts

    return [] if given["prompts"] is None else [record["prompt"] for record in read_prompts(given["prompts"])]
