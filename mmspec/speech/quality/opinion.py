"""Opinion scores predicted without a reference: DNSMOS P.835 (Reddy et al. 2022), whose network the package speechmos ships.

The network is run by onnxruntime from the package's file. The package's own module is not imported: it needs librosa, for a second network
that is not used here.
"""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from mmspec.speech.sound.audio import at_rate

RATE = 16_000
WINDOW = int(9.01 * RATE)
"""Samples that the network reads."""
_OVERALL = (-0.06766283, 1.11546468, 0.04602535)
"""The published polynomial from the network's last output to the scale of listeners."""


@cache
def opinion_network() -> Any:
    """Return the onnxruntime session of the network.

    Raises:
        ValueError: in one line, if the extra `quality` is not installed.
    """
    missing = [name for name in ("speechmos", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise ValueError(f"opinion scores need {' and '.join(missing)}: pip install 'mmspec[quality]', or pass opinions=False")
    package = find_spec("speechmos")
    path = Path(next(iter(package.submodule_search_locations or []))) / "dnsmos_models" / "sig_bak_ovr.onnx"
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def opinion_score(wave: Tensor, rate: int) -> float:
    """Return the overall score of `wave` [T], 1 to 5: the mean over windows that begin a second apart. A shorter wave is repeated."""
    network, sound = opinion_network(), at_rate(wave.float(), rate, RATE).clamp(-1, 1)
    if len(sound) < WINDOW:
        sound = (sound if len(sound) else sound.new_zeros(1)).repeat(-(-WINDOW // max(1, len(sound))))[:WINDOW]
    windows = sound.unfold(0, WINDOW, RATE).numpy().astype(np.float32)
    raw = [network.run(None, {"input_1": window[None]})[0][0][2] for window in windows]
    return float(np.mean(np.polyval(_OVERALL, np.asarray(raw, dtype=float))))
