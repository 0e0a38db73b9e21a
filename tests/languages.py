"""Whisper's languages on sentences that espeak-ng speaks: what is detected, written down and translated, and equality with `generate`.

    python -m tests.languages                                  # German and Spanish, the two Whispers that fetch_whisper.py keeps
    python -m tests.languages --languages de --batch-size 4

Every sentence is in the table. A row counts as equal if the transcript and the translation have the tokens of transformers' `generate` on
that recording alone, which detects the language itself.
"""

import argparse
import io
import shutil
import subprocess

import soundfile
import torch
from torch import Tensor

import mmspec
from mmspec.bench.suites.recordings import compared_words
from mmspec.loading.hearing import load_transcriber
from mmspec.loading.text import Pair
from mmspec.loading.wheels import model_folder
from mmspec.speech.recognition.whisper import features_of
from mmspec.speech.sound.audio import at_rate, levelled
from mmspec.speech.sound.recogniser import word_errors

SENTENCES = {
    "de": (
        "Guten Morgen, wie geht es dir heute?",
        "Ich möchte bitte eine Tasse Kaffee und ein Stück Kuchen.",
        "Der Zug nach Berlin fährt um acht Uhr ab.",
        "Meine Schwester wohnt in einem kleinen Haus am Meer.",
        "Die Kinder spielen im Garten mit dem Hund.",
        "Morgen wird das Wetter in ganz Deutschland schön.",
        "Heute ist Montag und morgen ist Dienstag.",
    ),
    "es": (
        "Buenos días, ¿cómo estás hoy?",
        "Quiero una taza de café y un vaso de agua, por favor.",
        "El tren para Madrid sale a las ocho de la mañana.",
        "Mi hermana vive en una casa pequeña cerca del mar.",
        "Los niños juegan en el jardín con el perro.",
        "Mañana hará buen tiempo en toda España.",
    ),
}
RATE, SPEED, PITCH = 16_000, 150, 50
TASKS = ("transcribe", "translate")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(model_folder("whisper-base")))
    parser.add_argument("--drafter", default=str(model_folder("whisper-tiny.en")))
    parser.add_argument("--languages", nargs="+", default=list(SENTENCES), choices=list(SENTENCES))
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--draft-length", type=int, default=5)
    args = parser.parse_args()
    program = shutil.which("espeak-ng")
    if program is None:
        parser.error("espeak-ng is not installed: apt-get install espeak-ng")
    pair = load_transcriber(args.model, args.drafter)
    print("| said | detected | written | words wrong | translated | tokens of `generate` |\n|---|---|---|---|---|---|")
    for language in args.languages:
        said = SENTENCES[language]
        waves = [spoken(program, text, language) for text in said]
        heard, english = (
            mmspec.speech.transcribe(
                pair.target, pair.processor, waves, pair.drafter, task=task, batch_size=args.batch_size, draft_length=args.draft_length
            )
            for task in TASKS
        )
        for text, wave, row, translated in zip(said, waves, heard.transcripts, english.transcripts, strict=True):
            same = [by_generate(pair, wave, task) for task in TASKS] == [list(row.tokens), list(translated.tokens)]
            wrong = sum(word_errors([compared_words(text)], [compared_words(row.text)]))
            cells = (text, row.language or "", row.text, f"{wrong} of {len(compared_words(text).split())}", translated.text)
            print(f"| {' | '.join(cells)} | {'yes' if same else 'no'} |", flush=True)
        print(f"{language}: {heard.stats.tokens_per_call:.2f} tokens a call, translated {english.stats.tokens_per_call:.2f}\n", flush=True)


def spoken(program: str, text: str, voice: str) -> Tensor:
    """Return what espeak-ng speaks, float32 [T] at `RATE`."""
    command = [program, "-v", voice, "-s", str(SPEED), "-p", str(PITCH), "--stdout", text]
    samples, rate = soundfile.read(io.BytesIO(subprocess.run(command, check=True, capture_output=True).stdout), dtype="float32")
    return levelled(at_rate(torch.from_numpy(samples), rate, RATE))


def by_generate(pair: Pair, wave: Tensor, task: str) -> list[int]:
    """Return the tokens of one recording by transformers' own `generate`, which detects its language."""
    features, mask = features_of(pair.processor.feature_extractor, [wave])
    asked = {"task": task, "temperature": 0.0, "return_timestamps": False, "return_segments": True}
    found = pair.target.generate(features, attention_mask=mask, **asked)
    return [number for part in found["segments"][0] for number in part["tokens"].tolist()]


if __name__ == "__main__":
    main()
