"""faster-whisper (CTranslate2) as a contender, where it is installed: the mark from outside."""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor

from mmspec.bench.suites.contenders import Measured, Run
from mmspec.loading.text import Pair

NAME = "faster-whisper"


class ClipInputs(dict[str, Any]):
    """What a recogniser's processor returned for some clips, with the clips themselves.

    Args:
        found: the inputs by name.
        waves: the clips [T] at the recogniser's rate.
    """

    def __init__(self, found: dict[str, Any], waves: Sequence[Tensor]):
        super().__init__(found)
        self.waves = tuple(waves)


def faster_whisper_run(folder: Path) -> Run:
    """Return faster-whisper as a contender, greedy and in float32: clip after clip, its own features included.

    Args:
        folder: a model as CTranslate2 keeps it.
    """
    why = None
    if find_spec("faster_whisper") is None:
        why = "faster_whisper is not installed: pip install faster-whisper"
    elif not (folder / "model.bin").is_file():
        why = f"{folder} holds no model.bin: speech/fetch_whisper.py --unconverted keeps one"
    if why is not None:
        return lambda pair, inputs, seed: Measured([], 0, 0, 0.0, 0.0, refused=why)
    return _runs(folder)


def _runs(folder: Path) -> Run:
    package = import_module("faster_whisper")
    model = package.WhisperModel(str(folder), device="cpu", compute_type="float32", cpu_threads=torch.get_num_threads())

    def run(pair: Pair, inputs: dict[str, Any], seed: int) -> Measured:
        assert isinstance(inputs, ClipInputs)
        config, start, cpu = pair.target.generation_config, perf_counter(), process_time()
        options = {"language": "en", "task": "transcribe", "beam_size": 1, "best_of": 1, "temperature": 0.0, "without_timestamps": True}
        options |= {"condition_on_previous_text": False, "suppress_tokens": config.suppress_tokens}
        options |= {"max_new_tokens": pair.config.run.max_new_tokens, "no_speech_threshold": None}
        options |= {"log_prob_threshold": None, "compression_ratio_threshold": None}
        rows = [_tokens(model.transcribe(wave.numpy(), **options)[0]) for wave in inputs.waves]
        seconds, cpu = perf_counter() - start, process_time() - cpu
        return Measured(rows, 0, 0, seconds, cpu)

    return run


def _tokens(segments: Any) -> list[int]:
    return [token for segment in segments for token in segment.tokens]
