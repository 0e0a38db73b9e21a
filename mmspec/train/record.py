"""A target's hidden states on text it wrote, recorded on disk and read window by window in training."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.drafters.features.reading import sight_of
from mmspec.drafters.guided import head_of
from mmspec.models.families.registry import family_of
from mmspec.models.model_checks import check_finite_weights
from mmspec.models.module_copy import own_copy, refresh
from mmspec.models.stack import numbered, stack, tapped
from mmspec.models.target import HFTarget
from mmspec.train.parallel import join_processes, own_share
from mmspec.train.states.disk import STATE_DTYPES, Recorded, RecordingSettings, chunk_file, open_recording, read_recording, write_chunk
from mmspec.train.states.identity import weights_checksum
from mmspec.train.states.memory import chunk_of_positions
from mmspec.train.states.window import RecordedWindow
from mmspec.utils.screen import track

Ask = Callable[[int, int], Mapping[str, Any]]
"""(first, end) -> what the processor returned for requests first to end - 1: prompts padded on either side, pictures with them."""

Write = Callable[[int, int], tuple[Mapping[str, Any], Tensor, Tensor]]
"""(first, end) -> the inputs of requests first to end - 1, the target's answers LongTensor [N, L] and their lengths [N]."""


@torch.no_grad()
def record(target: Any, ids: Tensor, own: Tensor, states: Sequence[int], folder: Path, rows: int = 16, dtype: str = "float32") -> Recorded:
    """Run `target` over windows of its own text and store its hidden states; chunks that are on disk are not made again.

    Args:
        target: a transformers model.
        ids: [N, W] windows.
        own: [N, W] bool, True where the target wrote the value.
        states: the hidden states a drafter reads, numbered as in `mmspec.models.stack`; the last one is stored besides.
        folder: where the recording is, or will be.
        rows: windows a forward and a file.
        dtype: of the states on disk, "float32" or "bfloat16".

    Returns:
        The recording.

    Raises:
        ValueError: if the folder holds a recording of other states, settings or text, if a weight or state is not finite, or if the
            target's logits do not follow from its last hidden state.
    """
    wanted = [*numbered(states, len(stack(target))), len(stack(target))]
    settings = RecordingSettings(states=tuple(wanted), dtype=dtype, windows=len(ids), rows=rows, target=weights_checksum(target))
    refresh(target)
    own_target = own_copy(target)

    def windows(first: int, end: int) -> RecordedWindow:
        batch = ids[first:end].to(target.device)
        with tapped(own_target, wanted) as found:
            logits = own_target(batch, logits_to_keep=1).logits
        _check_head(target, found[wanted[-1]][:, -1:], logits[:, -1:])
        last, features = found[wanted[-1]], [found[state] for state in wanted[:-1]]
        return RecordedWindow(batch, torch.cat(features, -1) if features else last[..., :0], last, own[first:end])

    recorded = _recorded(target, folder, settings, windows)
    for number, (first, end) in enumerate(settings.chunks()):
        if not torch.equal(recorded.chunks[number]["ids"].long(), ids[first:end].long().cpu()):
            raise ValueError(f"{folder} holds the states of another text: delete it or choose another folder")
    return recorded


def record_answers(
    target: Any,
    ask: Ask,
    answers: Tensor,
    lengths: Tensor,
    states: Sequence[int],
    folder: Path,
    opening: int,
    rows: int = 16,
    dtype: str = "float32",
) -> Recorded:
    """The same over requests with pictures or sound and what `target` answered, `answers` [N, L] of `lengths` [N].

    Windows have room for prompts of `opening` positions, pictures included; ValueError for a longer one.
    """
    wanted = [*numbered(states, len(stack(target))), len(stack(target))]
    settings = RecordingSettings(states=tuple(wanted), dtype=dtype, windows=len(answers), rows=rows, target=weights_checksum(target))
    width = opening + answers.shape[1]

    def windows(first: int, end: int) -> RecordedWindow:
        found = record_window(target, ask(first, end), answers[first:end], lengths[first:end], states)
        longest = found.ids.shape[1] - answers.shape[1]
        if longest > opening:
            raise ValueError(f"a prompt has {longest} positions, but windows have room for {opening}: raise opening")
        return found.widened(width)

    return _recorded(target, folder, settings, windows)


def record_written(
    target: Any, write: Write, count: int, states: Sequence[int], folder: Path, width: int, rows: int = 16, dtype: str = "float32"
) -> Recorded:
    """The same over `count` requests that are answered as they are recorded, such as recordings, which are encoded once for both.

    Args:
        target: a transformers model.
        write: returns what the target was given for some of the requests, and what it answered.
        count: number of requests.
        states: as in `record`.
        folder: where the recording is, or will be.
        width: values of a window, prompt and answer.
        rows: requests a file.
        dtype: of the states on disk.

    Returns:
        The recording.

    Raises:
        ValueError: for an answer that does not fit, and as `record`.
    """
    wanted = [*numbered(states, len(stack(target))), len(stack(target))]
    settings = RecordingSettings(states=tuple(wanted), dtype=dtype, windows=count, rows=rows, target=weights_checksum(target))

    def windows(first: int, end: int) -> RecordedWindow:
        found = record_window(target, *write(first, end), states)
        if found.ids.shape[1] > width:
            raise ValueError(f"a prompt and its answer have {found.ids.shape[1]} values, but windows have room for {width}: raise width")
        return found.widened(width)

    return _recorded(target, folder, settings, windows)


@torch.no_grad()
def record_window(target: Any, inputs: Mapping[str, Any], answers: Tensor, lengths: Tensor, states: Sequence[int]) -> RecordedWindow:
    """Windows of prompts and the `answers` [B, L] of `lengths` [B] behind them, packed to the left, run just as in a generation."""
    given = {key: value.to(target.device) if isinstance(value, Tensor) else value for key, value in inputs.items()}
    session, pending = HFTarget(target, family_of(target)).begin(given)
    session.watch([*states, -1])
    draft = pending.extend_chain(answers.to(target.device), lengths.to(target.device))
    scored = session.score(draft)
    assert scored.context is not None
    assert scored.hidden is not None
    before = scored.context.lengths[:, None]  # the last value of a prompt is the first node
    prompt, place = scored.context.ids.shape[1], torch.arange(scored.context.ids.shape[1] + draft.size, device=before.device)
    real = place <= before + lengths.to(before.device)[:, None]
    source = torch.where(place < before, place, place + prompt - before).clamp(max=len(place) - 1)
    ids = torch.cat([scored.context.ids, draft.nodes], 1).gather(1, source).masked_fill(~real, 0)
    hidden = torch.cat([scored.context.hidden, scored.hidden], 1)
    hidden = hidden.gather(1, source[..., None].expand(-1, -1, hidden.shape[-1])).masked_fill(~real[..., None], 0)
    wide = hidden.shape[-1] // (len(states) + 1) * len(states)
    vision = sight_of(session, ids[:, : prompt + 1], before[:, 0] + 1)
    size = target.config.get_text_config(decoder=True).vocab_size  # placeholders may lie beyond the vocabulary
    found = RecordedWindow(ids.clamp(max=size - 1), hidden[..., :wide], hidden[..., wide:], real & (place > before))
    return found if vision is None else replace(found, embeds=vision.embeds, pictures=vision.pictures).widened(len(place))


def _recorded(target: Any, folder: Path, settings: RecordingSettings, windows: Callable[[int, int], RecordedWindow]) -> Recorded:
    """The recording in `folder`; chunks that are not there yet are made of `windows`, by every process its share."""
    check_finite_weights(target)
    open_recording(folder, settings)
    here, own = join_processes(), own_share(list(settings.chunks()))
    missing = [chunk for chunk in own if not chunk_file(folder, chunk[0]).exists()]
    for first, end in track(missing, "record", disable=not missing or not here.is_main_process):
        write_chunk(folder, first, _with_totals(windows(first, end), target, STATE_DTYPES[settings.dtype]), settings)
    here.wait_for_everyone()
    return read_recording(folder, settings)


def _check_head(target: Any, last: Tensor, logits: Tensor) -> None:
    """Raise ValueError unless the `logits` [B, 1, V] of `target` are what `head_of` makes of its `last` hidden states [B, 1, H]."""
    found, logits = head_of(target)(last).float(), logits.float()
    if logits.isfinite().all() and not torch.allclose(found, logits, rtol=1e-2, atol=1e-2 * logits.abs().max().item()):
        raise ValueError(
            f"the logits of {type(target).__name__} are not its output head's product with its last hidden states: "
            "no drafter that reads these can be trained"
        )


@torch.no_grad()
def _with_totals(window: RecordedWindow, target: Any, dtype: torch.dtype) -> RecordedWindow:
    """`window` with `total` and `best`, of the last states as they are on disk."""
    at = torch.zeros_like(window.own)
    at[:, :-1] = window.own[:, 1:]
    at = at.to(window.last.device)
    head, totals, bests = head_of(target), [], []
    size = target.config.get_text_config(decoder=True).vocab_size
    for last in window.last[at].to(dtype).to(window.last.dtype).split(chunk_of_positions(size)):
        logits = head(last).float()
        totals.append(logits.logsumexp(-1))
        bests.append(logits.argmax(-1))
    total, best = window.last.new_zeros(at.shape, dtype=torch.float32), torch.zeros_like(at, dtype=torch.long)
    total[at], best[at] = torch.cat(totals), torch.cat(bests)
    return replace(window, total=total, best=best)
