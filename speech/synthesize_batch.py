"""Say every line of a file into a folder: in shards, so that a killed run is started again and goes on where it was.

    python speech/synthesize_batch.py lines.txt --out out --voice jackson
    python speech/synthesize_batch.py lines.jsonl --out out --drafter vadusa --format flac --batch-size 16
    torchrun --nproc-per-node 8 speech/synthesize_batch.py lines.jsonl --out out
    python speech/synthesize_batch.py lines.jsonl --out out --engine ray

Input: one object per line with "text" and, if wished, "voice" and "seed"; its other keys are kept. Or a text file with one text a line.
Output: out/sounds/000123.wav, named by the line's index, and the same objects with "index", "voice", "seed", "seconds" and "file" in
out/part-00000.jsonl and so on. Lines that cannot be said (nothing in them, characters the tokenizer lacks, too long, an unknown voice)
go to out/rejects.jsonl with the reason. The line at index i is drawn with its own seed or with seed + i, so a sound does not depend on
shards, batches or processes. docs/jobs.md tells the files and what may change when a job goes on.
"""

import json
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.jobs import Stopped, run
from mmspec.jobs.rows import BATCHING
from mmspec.jobs.speech_job import SpeechJobSpec, make_speech_job
from mmspec.loading.speech import Speaker
from mmspec.minis.char_tokenizer import FIRST_CODE, TEMPLATE, letter_tokenizer
from mmspec.minis.speech_data import VOICES
from mmspec.speech.codecs.small import PatchCodec, PatchCodecConfig
from mmspec.speech.families.codec_lm import CodecLM
from mmspec.speech.families.letters import Letters
from mmspec.speech.sound.files import SUBTYPES
from mmspec.utils.recipe_options import RecipeParser, run_recipe, typed_length


def tiny() -> Speaker:
    """A random target that writes 16 codes of noise."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    net = LlamaForCausalLM(LlamaConfig(vocab_size=FIRST_CODE + 16, max_position_embeddings=80, **sizes)).eval()
    codec, letters = PatchCodec(PatchCodecConfig(codes=16, width=8)).eval(), Letters(letter_tokenizer(), TEMPLATE, VOICES, 30)
    model = CodecLM(net, codec, letters, first=FIRST_CODE, codes=16, end=1, rate=8000, pace=50.0)
    return Speaker("tiny", model, "lookup", "lookup", {"texts": ["one two"]})


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("texts", type=Path, nargs="?", help="JSON lines with a text each, or a text file with one a line")
    parser.add_argument("--out", type=Path, help="a new folder, or that of the same job, to go on with it")
    parser.add_argument("--model", default="mini", help="mini, or a folder that speech/train_target.py wrote")
    parser.add_argument("--drafter", help="none, model, vadusa, lookup ..., or a folder; default: the mini's own model")
    parser.add_argument("--voice", help="of lines that name none")
    parser.add_argument("--accept", default="exact", help="a rule that `mmspec models` lists")
    parser.add_argument("--draft-length", type=typed_length, default="auto")
    parser.add_argument("--temperature", type=float, help="default: the model's own")
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--top-p", type=float, most=1)
    parser.add_argument("--max-seconds", type=float, help="cut there at the latest")
    parser.add_argument("--format", dest="form", choices=tuple(SUBTYPES), default="wav")
    parser.add_argument("--sample-rate", type=int, help="default: the model's own")
    parser.add_argument("--seed", type=int, least=0, default=0)
    parser.add_argument("--batch-size", type=int, default=8, help="texts that are said at a time")
    parser.add_argument("--batching", choices=BATCHING, default="continuous", help="texts join as others end, or wait")
    parser.add_argument("--shard-size", type=int, default=256, help="lines a shard; what a killed run may lose")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--engine", default="local", choices=("local", "ray"), help="one process, those of torchrun, or a cluster")
    parser.add_argument("--smoke", action="store_true", help="three lines said by a tiny random target, and three bad ones")
    args = vars(parser.parse_args())
    smoke, engine = args.pop("smoke"), args.pop("engine")
    try:
        if smoke:
            with TemporaryDirectory() as folder:
                args |= {"texts": Path(folder, "in.jsonl"), "out": Path(folder, "out"), "batch_size": 2, "shard_size": 2}
                asked = [{"text": "one two"}, {"text": "six", "voice": "theo", "seed": 7}, {"text": "42"}, {"text": "ten", "voice": "x"}]
                args["texts"].write_text("\n".join([*map(json.dumps, [*asked, {"text": "the end"}]), "no JSON"]), encoding="utf-8")
                report = run(partial(make_speech_job, SpeechJobSpec(**args), tiny()), engine)
                assert report
                assert (report.outputs, report.rejects) == (3, 3)
                assert len(list((args["out"] / "sounds").glob("*.wav"))) == 3
        elif args["texts"] is None or args["out"] is None:
            parser.error("give a file of texts and --out FOLDER, or --smoke")
        else:
            report = run(partial(make_speech_job, SpeechJobSpec(**args)), engine)
    except (ValueError, FileNotFoundError) as error:
        parser.error(" ".join(str(error).split()))
    except Stopped as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    if report is not None:
        counted = report.measures
        calls, factor = counted["tokens"] / max(1, counted["row_calls"]), counted["work"] / max(1e-9, counted["sound"])
        print(f"{report}; {counted['sound']:.1f} s of sound, {calls:.2f} tokens per call, real-time factor {factor:.2f}")


if __name__ == "__main__":
    run_recipe(main)
