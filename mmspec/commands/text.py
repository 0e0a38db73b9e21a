"""`mmspec text`: continue one prompt on the terminal, or many from a file."""

import json
import sys
from contextlib import nullcontext
from dataclasses import asdict, replace
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from mmspec.commands import common
from mmspec.utils.files import prompt_argument, read_prompts, whole
from mmspec.utils.places import Writes

if TYPE_CHECKING:
    from mmspec.run.config import Config

EXAMPLES = """Examples:

\b
  mmspec text "Once upon a time, there was a king" --temperature 0.8 --seed 3
  mmspec text "Question: Ann has 3 apples and buys 4 more. How many apples does she have?" --drafter suffix --show-rounds
  echo "Once upon a time" | mmspec text - --temperature 0.8 --json
  mmspec text "Hello" --model ./big --drafter ./small --dtype bfloat16
  mmspec text --input prompts.txt --output out.jsonl --batch-size 8
  mmspec text "Once" --config configs/text/tree.yaml --set run.seed=3
  mmspec text --model openai/whisper-large-v3 --audio talk.wav
"""
_FILES = common.FILES


def text(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - reads standard input.")] = None,
    model: common.MODEL = None,
    device: common.DEVICE = None,
    dtype: common.DTYPE = None,
    config: common.CONFIG = None,
    changes: common.SET = None,
    allow_code: common.ALLOW_CODE = False,
    drafter: common.DRAFTER = None,
    accept: common.ACCEPT_RULE = None,
    draft_length: common.LENGTH = None,
    tree: common.TREE = None,
    stop_below: common.STOP_BELOW = None,
    references: common.REFERENCES = None,
    temperature: common.TEMPERATURE = None,
    top_k: common.TOP_K = None,
    top_p: common.TOP_P = None,
    repetition_penalty: common.PENALTY = None,
    seed: common.SEED = None,
    max_new_tokens: common.MAX_NEW = None,
    stop: Annotated[list[str] | None, common.option(common.DRAWING, "End where STRING appears; may be repeated.", metavar="STRING")] = None,
    chat: Annotated[bool, common.option(_FILES, "Wrap prompts in the model's chat template.", "--chat")] = False,
    audio: Annotated[str | None, common.option(_FILES, "Speech recognisers: the sound to write down.", metavar="FILE")] = None,
    input_: Annotated[str | None, common.option(_FILES, "One prompt a line, or JSON lines.", "--input", metavar="FILE")] = None,
    output: Annotated[str | None, common.option(_FILES, "JSON lines, written whole or not at all.", metavar="FILE"), Writes()] = None,
    batch_size: Annotated[int, common.option(_FILES, "Prompts of --input run together; 8 by default.", metavar="N")] = 8,
    show_rounds: Annotated[bool, common.option(common.SHOW, "Underline accepted draft tokens as they commit.", "--show-rounds")] = False,
    as_json: common.JSON = False,
    verbose: common.VERBOSE = False,
) -> None:
    """Continue text: the tokens of plain decoding, in fewer calls of the target."""
    given = dict(locals())
    common.check_counts(given, "batch_size")
    settings = common.config_of(given)
    if settings.run.temperature == 0 and settings.accept.kind == "exact":
        common.refuse_unread("is for sampling, and temperature 0 is greedy decoding: give --temperature too", "--top-k", "--top-p")
    if input_ is not None:
        _many(settings, given)
    else:
        common.refuse_unread("belongs to --input: for one prompt leave it out", "--batch-size")
        _one(settings, given)


def _one(config: "Config", given: dict[str, Any]) -> None:
    """Continue one prompt, or transcribe one recording, printing the text as it commits."""
    if given["output"] is not None:
        raise ValueError("--output belongs to --input: for one prompt redirect standard output, or use --json")
    audio: str | None = given["audio"]
    prompt = prompt_argument(given["prompt"]) if audio is None else None
    common.begin(given["verbose"])
    from mmspec.bench.report.stream import Flow, summary
    from mmspec.loading.hearing import hear

    pair = replace(common.load(config), chat=given["chat"])
    inputs = hear(pair, audio) if audio is not None else pair.inputs([prompt or ""])
    stops, as_json = _stops(pair, given["stop"]), given["as_json"]
    if as_json:
        with common.progress("text", config.run.max_new_tokens) as done:
            out = pair.generate(inputs, stops=stops, on_step=lambda step: done(len(step.committed.values[0])))
    else:
        with Flow(pair.decode, given["show_rounds"]) as flow:
            out = pair.generate(inputs, stops=stops, on_step=flow)
    ids = out.sequences[0, : out.lengths[0]].tolist()
    if as_json:
        common.emit(
            {
                "prompt": prompt,
                "text": pair.decode(ids),
                "tokens": ids,
                "finish_reason": out.finish_reasons[0],
                **_about(pair),
                "stats": out.stats.to_dict(),
            }
        )
    else:
        common.note(summary(out.stats))
        common.note_cut(out.finish_reasons, "text", f"--max-new-tokens {config.run.max_new_tokens}")


def _many(config: "Config", given: dict[str, Any]) -> None:
    """Continue every prompt of a file. Without --output, results go to stdout as JSON lines."""
    for name, value in (("a prompt", given["prompt"]), ("--audio", given["audio"]), ("--show-rounds", given["show_rounds"] or None)):
        if value is not None:
            raise ValueError(f"--input and {name} were both given: give one of them")
    records, output = read_prompts(given["input_"]), given["output"]
    with whole(output) if output is not None else nullcontext(sys.stdout) as sink:
        common.begin(given["verbose"])
        rows, stats, pair = _run(config, given, records, None if given["as_json"] and output is None else sink)
    if given["as_json"]:
        found = {"prompts": len(rows), "output": output} | ({} if output is not None else {"results": rows})
        common.emit({**found, **_about(pair), "stats": stats.to_dict()})
    else:
        from mmspec.bench.report.stream import summary

        common.note(f"{len(rows)} prompts; {summary(stats)}")
        common.note_cut([row["finish_reason"] for row in rows], "text", f"--max-new-tokens {config.run.max_new_tokens}")


def _run(
    config: "Config", given: dict[str, Any], records: list[dict[str, Any]], sink: TextIO | None
) -> tuple[list[dict[str, Any]], Any, Any]:
    """Return (results, stats, pair); results are written to `sink` as they are finished."""
    from mmspec.core.stats import Stats
    from mmspec.jobs.text import run_bulk

    pair, stats, rows = replace(common.load(config), chat=given["chat"]), Stats(), []
    start = perf_counter()
    with common.progress("prompts", len(records)) as done:
        for row in run_bulk(pair, records, given["batch_size"], stats, _stops(pair, given["stop"])):
            rows.append(row)
            if sink is not None:
                sink.write(json.dumps(row, ensure_ascii=False) + "\n")
            done(1, f"{len(rows) / (perf_counter() - start):.2f} prompts/s")
    return rows, stats, pair


def _stops(pair: Any, strings: list[str] | None) -> tuple[Any, ...]:
    from mmspec.text import StopStrings

    return (StopStrings(tuple(strings), pair.decode),) if strings else ()


def _about(pair: Any) -> dict[str, Any]:
    return {"model": pair.name, "drafter": pair.drafter_name, "settings": asdict(pair.config)}
