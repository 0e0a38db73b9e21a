"""Pictures side by side in one, pictures of where codes were committed together, and their bytes."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP", ".bmp": "BMP"}
RAMP = ((238, 243, 250), (74, 144, 217), (24, 44, 110))
"""Colours of heat maps: codes committed one by one, a few together, and the most."""
_GAP, _TEXT = 8, 15  # pixels between pictures, and a label's height


def picture_format(path: str | Path) -> str:
    """Return the format of a picture's file name. ValueError lists the formats."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise ValueError(f"{path} ends in {suffix or 'nothing'!r}: name a picture that ends in {', '.join(FORMATS)}")
    return FORMATS[suffix]


def picture_bytes(picture: Image.Image, form: str = "PNG") -> bytes:
    """Return the file contents of a picture."""
    buffer = io.BytesIO()
    picture.save(buffer, format=form)
    return buffer.getvalue()


def sheet(rows: Sequence[Sequence[Image.Image]], labels: Sequence[str] = (), least: int = 128) -> Image.Image:
    """`rows` of pictures on white, small ones enlarged by a whole number until they are `least` pixels wide; a label above each row."""
    width, height = rows[0][0].size
    scale = max(1, -(-least // width))
    width, height, head = width * scale, height * scale, (_TEXT + _GAP if labels else 0)
    columns = max(len(row) for row in rows)
    font = ImageFont.load_default(_TEXT)
    wide = max([columns * (width + _GAP), *(round(font.getlength(label)) + _GAP for label in labels)])
    page = Image.new("RGB", (wide + _GAP, len(rows) * (height + head + _GAP) + _GAP), "white")
    draw = ImageDraw.Draw(page)
    for number, row in enumerate(rows):
        top = _GAP + number * (height + head + _GAP)
        if labels:
            draw.text((_GAP, top), labels[number], fill=(40, 48, 60), font=font)
        for column, picture in enumerate(row):
            large = picture.convert("RGB").resize((width, height), Image.Resampling.NEAREST)
            page.paste(large, (_GAP + column * (width + _GAP), top + head))
    return page


def temperature(runs: Tensor, most: int) -> Image.Image:
    """A picture [H, W], a pixel a cell, of how many codes were committed together there: 1 is pale, `most` and above dark, by logarithm."""
    level = np.log2(np.maximum(runs.cpu().numpy(), 1)) / max(np.log2(max(most, 2)), 1e-9)
    stops = np.linspace(0, 1, len(RAMP))
    channels = [np.interp(level, stops, [colour[c] for colour in RAMP]) for c in range(3)]
    return Image.fromarray(np.stack(channels, -1).round().astype(np.uint8))
