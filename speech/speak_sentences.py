"""Have the program espeak-ng speak sentences in many voices: recordings for `speech/train_heads.py`, whose texts nobody has to write down.

    python speech/speak_sentences.py build/spoken --count 600          (5 minutes on one CPU core)
    python speech/speak_sentences.py build/spoken-held --held          # from documents that the former leaves out

Beginnings of MMSPEC_DATA's stories, plays and worded sums are joined to recordings of 2 to 28 seconds, each in one voice, speed and pitch.
`recordings.tsv` has the text of every recording. Recordings that are there are not made again. espeak-ng is run as a program
(Debian: apt-get install espeak-ng); nothing of it is part of mmspec.
"""

import io
import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import soundfile
import torch

from mmspec.minis.corpus import documents
from mmspec.speech.sound.audio import at_rate, levelled, save
from mmspec.utils.files import whole
from mmspec.utils.places import RecipeParser

RATE = 16_000
VOICES = ("en-us", "en-us+f3", "en-us+m3", "en-us+f5", "en-gb", "en-gb+f2", "en-gb+m7", "en-gb-scotland", "en-gb-x-rp", "en-us+m1")
WORDS = (5, 75)
"""Words of a recording: 2 to 28 seconds."""


def sentences(text: str) -> list[str]:
    """Sentences of one document, without titles, speakers' names and lines."""
    text = re.sub(r"^(Question|Answer|Story): |^Play:$|^[A-Z][\w ]*:$", "", text, flags=re.MULTILINE)
    parts = re.split(r"(?<=[.!?])\s+", re.sub(r"\s+", " ", text.replace("$", " ").replace("#", " ")).strip())
    return [part for part in parts if 3 <= len(part.split()) <= 40 and re.fullmatch(r"[\w ,.;:'!?%-]+", part)]


def requests(texts: list[str], count: int, seed: int) -> list[tuple[str, str, int, int]]:
    """Texts with their voice, speed (words a minute) and pitch. The same call gives the same ones."""
    pick, made = random.Random(seed), []
    while len(made) < count:
        said, most = "", pick.randint(*WORDS)
        while True:
            found = sentences(pick.choice(texts))
            more = f"{said} {' '.join(found[: pick.randint(1, 4)])}".strip()
            if len(more.split()) > most:
                break
            said = more
        if said:
            made.append((said, pick.choice(VOICES), pick.randrange(145, 185), pick.randrange(35, 65)))
    return made


def speak(program: str, text: str, voice: str, speed: int, pitch: int) -> torch.Tensor:
    command = [program, "-v", voice, "-s", str(speed), "-p", str(pitch), "--stdout", text]
    samples, rate = soundfile.read(io.BytesIO(subprocess.run(command, check=True, capture_output=True).stdout), dtype="float32")
    return levelled(at_rate(torch.from_numpy(samples), rate, RATE))


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=Path("build/spoken"), help="folder of the recordings")
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--held", action="store_true", help="every twentieth document, which is left out otherwise")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="two sentences, and noise where espeak-ng is not installed")
    args = parser.parse_args()
    program = shutil.which("espeak-ng")
    if program is None and not args.smoke:
        parser.error("the program espeak-ng is not installed: install it (Debian: apt-get install espeak-ng)")
    if args.smoke:
        texts, args.count = ["The red bird sings in the garden. It waits for the rain."] * 2, 2
    else:
        found = documents(Path(os.environ.get("MMSPEC_DATA", "../shared/data")))
        texts = [text for place, text in enumerate(found) if (place % 20 == 0) == args.held]
    args.out.mkdir(parents=True, exist_ok=True)
    asked = requests(texts, args.count, args.seed)
    for number, (text, *how) in enumerate(asked):
        path = args.out / f"{number:05}.flac"
        if not path.exists():
            wave = 0.1 * torch.randn(RATE) if program is None else speak(program, text, *how)
            save(path.with_suffix(".tmp.flac"), wave, RATE)
            path.with_suffix(".tmp.flac").rename(path)
    with whole(args.out / "recordings.tsv") as file:
        file.writelines(f"{number:05}.flac\t{text}\n" for number, (text, *_) in enumerate(asked))
    print(f"{args.out}: {len(asked)} recordings, {sum(len(text.split()) for text, *_ in asked)} words")


if __name__ == "__main__":
    main()
