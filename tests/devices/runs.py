"""Runs of whole generations on simulated devices, and what the laws say about them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from tests.devices.simulated import FIRST, Event, SimulatedTensor, put, simulated_devices

OUTCOME = ("core/stopping:_fetch", "core/beams/stopping:BeamStopping._fetch")  # the one synchronisation of every round
MORE_SYNCS = {  # by site: other synchronisations, and why they are there
    "drafters/trees/search:ExpandRerank._checked": "a level less of a drafter costs less than the wait, and only with a `stop`",
    "drafters/trees/best_first:BestFirst.grow": "a call of the drafter runs as many columns as there are nodes to expand",
    "drafters/trees/best_first:_Candidates.finished": "a draft has as many columns as its largest row has nodes",
    "drafters/self_drafting/swift:foretold": "one a candidate, every so many rounds",
    "drafters/self_drafting/layer_skip:SimilarGuide.observe": "once, after the first round",
    "core/distributions/thinning:ResidualByThinning.sample": "tries are made until one is kept",
    "drafters/retrieval/host:_behind": "values that a cascade has committed for now are not on the host",
    "speech/families/csm:CsmDepth.write": "the class's depth decoder compares its positions",
    "speech/families/musicgen:_longer": "once a length of the view",
    "speech/latents/pocket_tts:Spoken._at_end": "once a row that is as long as it may be: why it ended",
    "core/noise:Keys.__getitem__": "of the tries above",
    "core/distributions/denoising_path:Denoiser.walk": "the denoising steps of the longest accepted part are left out",
    "core/chains/sampler:SpeculativeSampler._begin": "once a token: rows may begin at steps of their own",
    "core/chains/sampler:_Tokens.close": "rows whose chains have ended are left out of the next call",
    "core/chains/sampler:SpeculativeSampler._round": "rows whose chains have ended are left out of the next call",
    "core/distributions/gaussian:Gaussian.mass": "unequal scales are refused",
    "core/rules/d_grs:Claimed.of": "unequal scales are refused",
    "models/recurrent/states:ForwardColumns.of": "rows that hold unequally many columns run apart",
    "models/recurrent/states:RecurrentStates.commit": "rows that keep unequally many columns run apart",
    "speech/latents/vibevoice_network:DenoisedLatent.__call__": "diffusers' scheduler has its steps' times on the host",
}
DOUBLES = (  # float64: noise, probabilities, and the transfer of a round's outcome; never a forward or a processor
    "core/",
    "drafters/model/beam",
    "drafters/heads/viterbi:",
    "drafters/retrieval/bigrams:",
    "vision/continuous/masked_sets:Canvas.__init__",
)
_NEVER_DOUBLE = ("core/processors/",)
_TOP_P = "core/processors/pipeline:TopP."  # its sums decide which values stay, the same ones on every device
SOUND = ("speech/codecs/", "speech/generation:", "speech/sound/")  # finished sound is decoded, and goes to the host, between rounds

OnStep = Callable[[Any], None]
Call = Callable[[Any, Callable[[Any], None]], Any]
"""Generates with a model and whatever else a case holds, calling `on_step` every round; returns its output."""


@dataclass(frozen=True)
class Run:
    """A generation on simulated devices."""

    output: Any
    setup: list[Event]  # synchronisations up to the end of the first round
    rounds: list[list[Event]]  # those of every later round
    doubles: set[Event]


def simulated(parts: Any, call: Call, *, placed: bool = False) -> Run:
    """Run `call` with a copy of `parts` on cuda:0.

    Args:
        parts: models, inputs and drafters on the CPU, in any container.
        call: what generates with them.
        placed: `parts` are on simulated devices already.

    Returns:
        What was seen.
    """
    with simulated_devices() as watch:
        moved = parts if placed else put(parts, FIRST)
        watch.syncs.clear()
        watch.doubles.clear()
        marks: list[int] = []
        output = call(moved, lambda step: marks.append(len(watch.syncs)))
        events = list(watch.syncs)
    rounds = [events[start:end] for start, end in pairwise(marks)]
    return Run(plain(output), events[: marks[0]] if marks else events, rounds, set(watch.doubles))


def _never_double(site: str) -> bool:
    return site.startswith(_NEVER_DOUBLE) and not site.startswith(_TOP_P)


def unexplained(run: Run) -> list[str]:
    """The faults of a run: rounds without exactly one transfer of their outcome, and synchronisations that no table explains."""
    faults = []
    for number, events in enumerate(run.rounds, 2):
        if (count := sum(event.site in OUTCOME for event in events)) != 1:
            faults.append(f"round {number} has {count} transfers of its outcome")
        known = (*OUTCOME, *MORE_SYNCS)
        other = [event for event in events if event.site not in known and not event.site.startswith(SOUND)]
        faults += [f"round {number}: {event.name} in {event.site}" for event in other]
    doubles = {event.site for event in run.doubles if not event.site.startswith(DOUBLES) or _never_double(event.site)}
    return faults + [f"float64 in {name}" for name in sorted(doubles)]


def plain(output: Any) -> Any:
    """An output with CPU tensors as nested lists."""
    if isinstance(output, SimulatedTensor):
        output = output.values_
    if isinstance(output, torch.Tensor):
        return output.tolist()
    return [plain(part) for part in output] if isinstance(output, Sequence) and not isinstance(output, str) else output
