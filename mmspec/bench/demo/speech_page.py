"""The speech section as HTML: figures, and a player and a spectrogram for every text and way."""

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
import soundfile
import torch
from matplotlib import colormaps
from PIL import Image
from torch import Tensor

from mmspec.bench.report.page import kept, table, way

_HEAD = ("way", "exactness", "codes a call", "drift", "real-time factor", "first sound, ms", "&times; plain", "same as plain")
_POINTS, _HOP, _STRIP = 256, 80, 10
_SHADES = (74, 144, 217), (250, 200, 90)


def section_html(found: Any, rows: Sequence[dict[str, Any]]) -> str:
    """`found`: runs by way; `rows`: the table's figures."""
    target = found.mini.target
    size = sum(parameter.numel() for parameter in target.model.parameters()) / 1e6
    cells = []
    for number, (text, voice) in enumerate(found.texts):
        runs = [(row, found.runs[row["way"]][number]) for row in rows]
        players = "".join(_player(row, run, target.rate) for row, run in runs)
        cells.append(f'<h3>{escape(text)} <span class="note">({escape(voice)})</span></h3><div class="sounds">{players}</div>')
    return f"""<h2>Speech</h2>
<style>.sounds {{ display:grid; grid-template-columns:repeat(auto-fill,minmax(150px,1fr)); gap:.8rem }}
.sounds figure {{ margin:0; background:var(--card); border:1px solid var(--line); border-radius:12px; padding:.6rem }}
.sounds img {{ width:100%; height:110px; border-radius:6px; display:block }} .sounds audio {{ width:100%; height:34px; margin-top:.4rem }}
.sounds figcaption {{ font-size:.82rem; color:var(--soft) }} .sounds b {{ color:var(--ink) }}</style>
<p class="soft">A target of {size:.1f} M parameters that writes {target.pace:g} codes a second of sound, by the same seeds.</p>
{table(_HEAD, [_row(row) for row in rows], words=2)}
<p class="note">Codes a call are counts, the same on every machine; a real-time factor is seconds of work for a second of sound on this one,
codec included. A token-exact way must give plain decoding's sound sample for sample. Drift is what a lossy way spent of total variation,
summed over an utterance's codes. Under each spectrogram: where one forward ended and the next began.</p>
{"".join(cells)}"""


def _row(row: dict[str, Any]) -> list[str]:
    return [
        *way(row),
        f"{row['tokens_per_call']:.2f}",
        "" if row["drift"] is None else f"{row['drift']:.2f}",
        f"{row['real_time_factor']:.2f}",
        f"{1000 * row['first_sound']:.0f}",
        f"{row['times_plain']:.2f}",
        kept(row["same_sounds"], row["exactness"]),
    ]


def _player(row: dict[str, Any], run: Any, rate: int) -> str:
    """A spectrogram, a player and what it cost."""
    same = ' &middot; <span class="same">same sound</span>' if run.same and row["way"] != "plain" else ""
    words = f"{run.stats.tokens} codes, {run.stats.row_calls} forwards{same}"
    return (
        f'<figure><img alt="spectrogram" src="data:image/png;base64,{_spectrogram(run)}">'
        f'<audio controls preload="none" src="data:audio/wav;base64,{_wav(run.wave, rate)}"></audio>'
        f"<figcaption><b>{escape(row['way'])}</b><br>{words}</figcaption></figure>"
    )


def _wav(wave: Tensor, rate: int) -> str:
    buffer = io.BytesIO()
    soundfile.write(buffer, wave.numpy(), rate, format="WAV", subtype="PCM_16")
    return base64.b64encode(buffer.getvalue()).decode()


def _spectrogram(run: Any) -> str:
    """Log-magnitudes, low notes at the bottom, over a strip that changes its shade with every forward."""
    wave = run.wave if len(run.wave) >= _POINTS else torch.nn.functional.pad(run.wave, (0, _POINTS - len(run.wave)))
    found = torch.stft(wave, _POINTS, _HOP, window=torch.hann_window(_POINTS), return_complex=True).abs()
    level = ((found.clamp_min(1e-3).log() + 6.9) / 10).clamp(0, 1).flip(0).numpy()  # [bins, frames]
    picture = (255 * colormaps["magma"](level)[..., :3]).astype(np.uint8)
    shades = np.repeat([turn % 2 for turn in range(len(run.committed))], run.committed)
    place = np.arange(picture.shape[1]) * max(1, len(shades)) // picture.shape[1]
    strip = np.where(shades[place][None, :, None] == 0, np.array(_SHADES[0], np.uint8), np.array(_SHADES[1], np.uint8))
    buffer = io.BytesIO()
    Image.fromarray(np.concatenate([picture, np.repeat(strip, _STRIP, 0)])).save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()
