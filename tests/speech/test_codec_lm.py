"""Codec language models of Llama and Qwen2: transformers' own tokens, and the same samples per seed however they are drafted."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from mmspec.core import stopping as stopping
from mmspec.drafters.checkpoints.nets import new_net
from mmspec.speech import synthesize
from mmspec.speech.codecs.streams import WindowCodec
from mmspec.speech.codecs.transformers import HFCodec
from mmspec.speech.families.base import SpeechSampling
from mmspec.speech.families.codec_lm import CodecLM
from mmspec.speech.sampling.ras import repetition_aware
from tests.speech.small_codecs import SIZE, dac, xcodec2

LETTERS = " abcdefghijklmnopqrstuvwxyz"
WORDS = ["<pad>", "<end>", "<go>", "<unk>", "<ann>", "<bob>", *LETTERS]
FIRST, PLACES = len(WORDS), 3
VALUES = FIRST + SIZE * PLACES + 7  # a few more, which stand for nothing
TEXTS = ["hello", "a longer thing to say", "three five"]
CLASSES = {"llama": (LlamaForCausalLM, LlamaConfig), "qwen2": (Qwen2ForCausalLM, Qwen2Config)}


def tokenizer() -> PreTrainedTokenizerFast:
    names = WORDS + [f"<|s_{code}|>" for code in range(SIZE * PLACES)]
    made = Tokenizer(models.WordLevel({name: place for place, name in enumerate(names)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    made.add_special_tokens(names[:6])
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<end>", unk_token="<unk>", padding_side="left")


def network(name: str = "llama", layers: int = 2, seed: int = 0):
    torch.manual_seed(seed)
    kind, config = CLASSES[name]
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    model = kind(config(vocab_size=VALUES, num_hidden_layers=layers, max_position_embeddings=120, **sizes, **ids)).eval()
    for parameter in model.parameters():
        parameter.data.mul_(5 if parameter.dim() > 1 else 1)
    return model


def levels(frames: torch.Tensor) -> torch.Tensor:
    """Three levels in one frame, as a codec that is no transformers class: its sound rests on the frame before, too."""
    tone = frames.float() @ torch.tensor([1.0, 0.1, 0.01])
    return (torch.nn.functional.pad(tone, (1, 0))[:-1, None] + tone[:, None] * torch.arange(1.0, 5)).flatten()


def llasa(name: str = "llama", **options) -> CodecLM:
    """One book, the sound of X-Codec2 (all at the end) or of DAC with one book (in pieces)."""
    codec = HFCodec(options.pop("codec", None) or dac(n_codebooks=1), block=3)
    options = {"voices": ("ann", "bob"), "template": "<{voice}>{text}<go>", "sampling": SpeechSampling(top_p=0.9), "longest": 30} | options
    return CodecLM.of(options.pop("model", None) or network(name), tokenizer(), codec, pattern="<|s_{}|>", end="<end>", **options)


def orpheus(name: str = "llama", **options) -> CodecLM:
    """Three ids a frame."""
    codec = WindowCodec(levels, rate=8000, samples=4, behind=1, block=2, size=SIZE)
    options = {"template": "{text}<go>", "sampling": SpeechSampling(temperature=0.8), "longest": 30, "places": PLACES} | options
    return CodecLM.of(options.pop("model", None) or network(name), tokenizer(), codec, pattern="<|s_{}|>", end="<end>", **options)


def rows_of(out):
    return [row[:length].tolist() for row, length in zip(out.tokens, out.lengths.tolist(), strict=True)]


# --- the class's own tokens -------------------------------------------------------------------------------------------


def reference(speaker: CodecLM, texts, allowed, steps: int):
    """`generate` under constraints: `allowed(i)` are the ids that may stand at output position i."""
    prompt = speaker.encode(texts, [None] * len(texts))
    prompt.pop("said", None)
    width = prompt["input_ids"].shape[1]
    out = speaker.model.generate(
        **prompt, do_sample=False, max_new_tokens=steps, prefix_allowed_tokens_fn=lambda row, ids: allowed(len(ids) - width), eos_token_id=1
    )
    rows = [line[width:].tolist() for line in out]
    return [row[: row.index(1) + 1] if 1 in row else row for row in rows]


CODES = list(range(FIRST, FIRST + SIZE))
LAYOUTS = {
    "llasa": (llasa, lambda i: [1, *CODES]),
    "orpheus": (orpheus, lambda i: [1] * (i % PLACES == 0) + [FIRST + i % PLACES * SIZE + code for code in range(SIZE)]),
    "least": (lambda name: llasa(name, least=1.5), lambda i: [1, *CODES] if i >= 7 else CODES),  # of "hello", which has 5 ids
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CLASSES)
def test_greedy_is_the_class_own_generate(name, layout):
    make, allowed = LAYOUTS[layout]
    speaker = make(name)
    seconds = 24.5 / speaker.pace
    for texts in (TEXTS[:1], TEXTS) if layout != "least" else (TEXTS[:1],):
        wanted = reference(speaker, texts, allowed, 24)
        for drafter in (None, "lookup", network(name, 1, 1)):
            out = synthesize(
                speaker, texts, drafter, temperature=0.0, top_p=1.0, max_seconds=seconds, draft_length=4 if drafter else "auto"
            )
            assert rows_of(out) == wanted


# --- the same samples per seed ----------------------------------------------------------------------------------------


def drafted(speaker):
    """Ways to draft: (drafter, tree, draft_length)."""
    torch.manual_seed(5)
    heads = new_net("medusa", speaker.model, {"heads": 3}).eval()
    small = network("llama", 1, 1)
    return {"lookup": ("lookup", None, 5), "model": (small, None, 3), "heads": (heads, None, 3), "tree": (small, (3, 2, 1), 3)}


@pytest.mark.parametrize("make", [llasa, orpheus])
def test_coupled_is_plain_sampling_for_the_seed(make):
    """At batch 1, 2 and 8, whatever drafts: the same ids, and the same samples bit for bit."""
    speaker = make()
    texts, seeds = [TEXTS[row % 3] for row in range(8)], [3, 8, 5, 1, 4, 2, 9, 6]
    seconds = 24.5 / speaker.pace
    plain = synthesize(speaker, texts, seed=seeds, max_seconds=seconds)
    assert len({tuple(row) for row in rows_of(plain)}) == 8
    for name, (drafter, tree, length) in drafted(speaker).items():
        for rows in (1, 2, 8) if name in ("model", "tree") else (2,):
            out = synthesize(
                speaker, texts[:rows], drafter, accept="coupled", seed=seeds[:rows], max_seconds=seconds, tree=tree, draft_length=length
            )
            assert rows_of(out) == rows_of(plain)[:rows]
            assert all(torch.equal(a, b) for a, b in zip(out.waveforms, plain.waveforms, strict=False))


def test_repetition_aware_sampling_stays_itself():
    """With CosyVoice's sampler and a least length, as distributions along each node's own path: ids and samples as plain sampling's."""
    sampler = repetition_aware(exclude=(1,), top_k=12)
    speaker = llasa(sampling=SpeechSampling(last=(sampler,)), least=1.0)
    plain = synthesize(speaker, TEXTS, seed=2, max_seconds=0.25)
    for row, text in zip(rows_of(plain), TEXTS, strict=True):
        assert len(row) >= min(len(text), 31)
    for name, (drafter, tree, length) in drafted(speaker).items():
        out = synthesize(speaker, TEXTS, drafter, seed=2, max_seconds=0.25, tree=tree, draft_length=length)
        assert rows_of(out) == rows_of(plain), name
        assert all(torch.equal(a, b) for a, b in zip(out.waveforms, plain.waveforms, strict=True))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_target_as_its_own_drafter_accepts_everything(temperature):
    speaker = orpheus()
    out = synthesize(speaker, TEXTS, speaker, temperature=temperature, draft_length=3, max_seconds=24.5 / speaker.pace)
    assert out.stats.accepted == out.stats.judged > 0
    full = [index for index, count in enumerate(out.stats.histogram) if count and index < 3]
    assert sum(out.stats.histogram[index] for index in full) <= len(TEXTS)  # a row's last call may be cut


# --- sound as it commits ----------------------------------------------------------------------------------------------


def heard(speaker, drafter, length=3):
    """The call's result, and what had been given out beside what had committed, at every round."""
    pieces, committed, seen = [], [], []

    def step(now):
        committed.extend(now.committed.values[0])
        seen.append((torch.cat(pieces) if pieces else torch.zeros(0), list(committed)))

    out = synthesize(
        speaker, TEXTS[1:2], drafter, seed=4, max_seconds=24.5 / speaker.pace, draft_length=length,
        on_sound=lambda row, piece: pieces.append(piece), on_step=step,
    )  # fmt: skip
    return out, pieces, seen


@pytest.mark.parametrize("make", [llasa, orpheus])
def test_pieces_are_the_wave_and_rest_on_committed_codes(make):
    speaker = make()
    out, pieces, seen = heard(speaker, network("llama", 1, 1))
    assert torch.equal(torch.cat(pieces), out.waveforms[0])
    assert torch.equal(speaker.sound(rows_of(out)[0]), out.waveforms[0])
    given = 0
    for sound, committed in seen[:-1]:
        known = list(speaker.stream().push(committed))
        assert torch.equal(sound, torch.cat(known) if known else torch.zeros(0))
        given += len(sound) > 0
    assert given > 1


def test_rejected_rows_that_leak_are_caught(monkeypatch):
    """The mutant: what was drafted goes to the codec before it is judged. The tokens are right, and only the sound tells."""
    speaker, whole = llasa(), stopping.DefaultStopping.commit
    out, _, _ = heard(speaker, network("llama", 1, 1))

    def leaking(self, draft, scored, verdict):
        verdict, committed = whole(self, draft, scored, verdict)
        return verdict, replace(
            committed, values=[draft.draft_tokens[0][draft.valid[0, draft.roots :]].tolist() + committed.values[0][-1:]]
        )

    monkeypatch.setattr(stopping.DefaultStopping, "commit", leaking)
    leaked, pieces, _ = heard(speaker, network("llama", 1, 1))
    assert rows_of(leaked) == rows_of(out)
    assert not torch.equal(torch.cat(pieces), out.waveforms[0])


def test_a_codec_that_attends_to_everything_speaks_at_the_end():
    speaker = llasa(codec=xcodec2())
    out, pieces, _ = heard(speaker, "lookup")
    assert len(pieces) == 1
    assert len(pieces[0]) == 16 * sum(step != 1 for step in rows_of(out)[0])


def test_a_frame_half_done_makes_no_sound():
    speaker = orpheus()
    out = synthesize(speaker, TEXTS[:1], seed=4, max_seconds=11.5 / speaker.pace)
    assert out.lengths.tolist() == [11]
    assert len(out.waveforms[0]) == 3 * 4


# --- what cannot be said ----------------------------------------------------------------------------------------------


def without(*attributes):
    return SimpleNamespace(rate=8000, pace=100.0, stream=None, **dict(attributes))


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: synthesize(llasa(), ["héllo"]), "text 'héllo' has 'é', which the tokenizer lacks"),
        (lambda: synthesize(llasa(), [" "]), "text ' ' is empty"),
        (lambda: synthesize(llasa(), []), "give at least one"),
        (lambda: synthesize(llasa(), "hello"), "give a list with one entry per row"),
        (lambda: synthesize(llasa(), ["hello"], voice="eve"), "unknown voice 'eve'; valid: ann, bob"),
        (lambda: synthesize(orpheus(), ["hello"], voice="ann"), "this model takes none"),
        (lambda: synthesize(llasa(), ["la " * 20]), "is too long: 62 ids where the model takes 30"),
        (lambda: synthesize(llasa(), ["hello"], max_seconds=10), "this model has room for 0.72"),
        (lambda: CodecLM.of(network(), tokenizer(), without(), pattern="<|s_{}|>", end="<end>"), "give codes"),
        (lambda: llasa(codes=900), "no token '<|s_192|>': check pattern, skip and codes"),
        (lambda: llasa(skip=150), "no token '<|s_192|>'"),
        (lambda: CodecLM.of(network(), tokenizer(), HFCodec(dac()), pattern="<|s|>", end="<end>"), "has no place for a number"),
        (lambda: CodecLM.of(network(), tokenizer(), HFCodec(dac()), pattern="<|s_{}|>", end="<stop>"), "no token '<stop>': check end"),
        (lambda: CodecLM.of(network(), tokenizer(), without(), pattern="{}", end="<end>", codes=2), "no token '0'"),
    ],
)
def test_bad_requests_are_told_in_one_line(ask, said):
    with pytest.raises(ValueError) as caught:
        ask()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_too_small_for_its_tokens_is_refused():
    small = LlamaForCausalLM(LlamaConfig(vocab_size=50, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1))
    with pytest.raises(ValueError, match="need ids up to 96, but the model has 50 values"):
        llasa(model=small.eval())


def test_a_tokenizer_without_padding_serves_ragged_texts():
    speaker, bare = llasa(), llasa()
    bare.letters.tokenizer.pad_token = None
    assert rows_of(synthesize(bare, TEXTS, seed=3, max_seconds=0.1)) == rows_of(synthesize(speaker, TEXTS, seed=3, max_seconds=0.1))
