"""Weights of CTranslate2: reads model.bin and maps Whisper's to transformers.

The format (versions 4 to 6, little-endian): version u32; name of the specification; revision u32; number of variables u32; each variable
with its name, rank u8, dims u32, kind of number u8, bytes u32, data; number of aliases u32; each alias with its name and what it stands
for. A name is its length with the closing zero u16, and the bytes.
"""

import json
import re
import shutil
import struct
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

KINDS = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)
"""Kind of number -> dtype."""
_VERSIONS = range(4, 7)
_MULTILINGUAL = 51_865  # tokens from which on a Whisper knows more than English


def read_variables(path: str | Path) -> dict[str, Tensor]:
    """Read every variable of a model.bin.

    Args:
        path: the file.

    Returns:
        Tensors by name, in the file's dtypes; aliases share their tensor.

    Raises:
        ValueError: for another format, and for a file that ends early or late.
    """
    reader = _Reader(Path(path).read_bytes())
    try:
        version = reader.number("I")
        if version not in _VERSIONS:
            raise ValueError(f"{path} is of CTranslate2's format {version}; formats {_VERSIONS[0]} to {_VERSIONS[-1]} can be read")
        _ = reader.text(), reader.number("I")  # the specification and its revision
        found = dict(reader.variable() for _ in range(reader.number("I")))
        for _ in range(reader.number("I")):
            name, other = reader.text(), reader.text()
            found[name] = found[other]
    except (struct.error, IndexError, UnicodeDecodeError, KeyError):
        raise ValueError(f"{path} is no model.bin of CTranslate2, or it is damaged") from None
    if reader.place != len(reader.data):
        raise ValueError(f"{path} has {len(reader.data) - reader.place} bytes behind its last variable: it is damaged")
    return found


class _Reader:
    """Numbers, names and variables of a model.bin, one after the other."""

    def __init__(self, data: bytes):
        self.data, self.place = data, 0

    def number(self, form: str) -> int:
        """The next little-endian integer, of a format character of `struct`."""
        (value,) = struct.unpack_from(f"<{form}", self.data, self.place)
        self.place += struct.calcsize(form)
        return value

    def text(self) -> str:
        """The next name."""
        return self._take(self.number("H"))[:-1].decode()

    def variable(self) -> tuple[str, Tensor]:
        """The next variable's name and values."""
        name = self.text()
        shape = [self.number("I") for _ in range(self.number("B"))]
        dtype, size = KINDS[self.number("B")], self.number("I")
        if size != prod(shape) * dtype.itemsize:
            raise struct.error("size and shape disagree")
        return name, torch.frombuffer(bytearray(self._take(size)), dtype=dtype).reshape(shape)

    def _take(self, size: int) -> bytes:
        if self.place + size > len(self.data):
            raise struct.error("the file ends early")
        self.place += size
        return self.data[self.place - size : self.place]


def write_variables(path: str | Path, variables: Mapping[str, Tensor], aliases: Mapping[str, str] | None = None) -> None:
    """Write a model.bin (format 6), for files made in tests.

    Args:
        path: the file.
        variables: tensors by name, in a dtype of `KINDS`.
        aliases: further name -> name of a variable.
    """

    def text(value: str) -> bytes:
        return struct.pack("<H", len(value.encode()) + 1) + value.encode() + b"\0"

    parts = [struct.pack("<I", 6), text("WhisperSpec"), struct.pack("<II", 3, len(variables))]
    for name, tensor in variables.items():
        data = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        head = struct.pack(f"<B{tensor.dim()}IBI", tensor.dim(), *tensor.shape, KINDS.index(tensor.dtype), len(data))
        parts += [text(name), head, data]
    parts.append(struct.pack("<I", len(aliases or {})))
    parts += [text(name) + text(other) for name, other in (aliases or {}).items()]
    Path(path).write_bytes(b"".join(parts))


def whisper_sizes(variables: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the arguments of `WhisperConfig` that follow from the shapes of Whisper's variables.

    Raises:
        ValueError: for variables of another model.
    """
    if "encoder/conv1/weight" not in variables or "decoder/embeddings/weight" not in variables:
        raise ValueError("the file holds another model than Whisper")
    vocabulary, width = variables["decoder/embeddings/weight"].shape
    sizes: dict[str, Any] = {"vocab_size": vocabulary, "d_model": width, "num_mel_bins": variables["encoder/conv1/weight"].shape[1]}
    for side, positions in (("encoder", "max_source_positions"), ("decoder", "max_target_positions")):
        layers = {name.split("/")[1] for name in variables if name.startswith(f"{side}/layer_") and "norm" not in name.split("/")[1]}
        sizes[f"{side}_layers"] = len(layers)
        sizes[f"{side}_attention_heads"] = int(variables[f"{side}/num_heads"])
        sizes[f"{side}_ffn_dim"] = variables[f"{side}/layer_0/ffn/linear_0/weight"].shape[0]
        sizes[positions] = variables[f"{side}/position_encodings/encodings"].shape[0]
    return sizes


def whisper_weights(variables: Mapping[str, Tensor], sizes: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the state dict of `WhisperForConditionalGeneration` in float32, without its output layer, which is the embedding.

    Args:
        variables: of `read_variables`, in floating-point numbers.
        sizes: of `whisper_sizes`.

    Raises:
        ValueError: for weights kept as integers, and for biases of keys, which Whisper has not.
    """
    found: dict[str, Tensor] = {}
    for name, parts in whisper_names(sizes["encoder_layers"], sizes["decoder_layers"]):
        tensor = variables[name]
        if not tensor.is_floating_point():
            raise ValueError(f"{name} is kept as {str(tensor.dtype).removeprefix('torch.')}: take a conversion in float16 or float32")
        for part, piece in zip(parts, tensor.float().chunk(len(parts)), strict=True):
            if not part.endswith("k_proj.bias"):
                found[part] = piece.clone()
            elif bool(piece.any()):
                raise ValueError(f"{part} is not zero, and Whisper's keys have no bias")
    return found


def whisper_names(encoder_layers: int, decoder_layers: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield every weight's name in CTranslate2, and the names in transformers of its parts, one below the other.

    Args:
        encoder_layers: number of the encoder's layers.
        decoder_layers: number of the decoder's layers.
    """
    for number in (1, 2):
        yield from _both(f"encoder/conv{number}", f"model.encoder.conv{number}")
    yield "decoder/embeddings/weight", ("model.decoder.embed_tokens.weight",)
    for side, layers in (("encoder", encoder_layers), ("decoder", decoder_layers)):
        yield f"{side}/position_encodings/encodings", (f"model.{side}.embed_positions.weight",)
        yield from _norm(f"{side}/layer_norm", f"model.{side}.layer_norm")
        for layer in range(layers):
            yield from _layer(f"{side}/layer_{layer}", f"model.{side}.layers.{layer}", crossed=side == "decoder")


def _layer(name: str, other: str, crossed: bool) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield from _both(f"{name}/self_attention/linear_0", *(f"{other}.self_attn.{part}_proj" for part in "qkv"))
    yield from _both(f"{name}/self_attention/linear_1", f"{other}.self_attn.out_proj")
    yield from _norm(f"{name}/self_attention/layer_norm", f"{other}.self_attn_layer_norm")
    if crossed:
        yield from _both(f"{name}/attention/linear_0", f"{other}.encoder_attn.q_proj")
        yield from _both(f"{name}/attention/linear_1", *(f"{other}.encoder_attn.{part}_proj" for part in "kv"))
        yield from _both(f"{name}/attention/linear_2", f"{other}.encoder_attn.out_proj")
        yield from _norm(f"{name}/attention/layer_norm", f"{other}.encoder_attn_layer_norm")
    yield from _both(f"{name}/ffn/linear_0", f"{other}.fc1")
    yield from _both(f"{name}/ffn/linear_1", f"{other}.fc2")
    yield from _norm(f"{name}/ffn/layer_norm", f"{other}.final_layer_norm")


def _both(name: str, *others: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    for kind in ("weight", "bias"):
        yield f"{name}/{kind}", tuple(f"{other}.{kind}" for other in others)


def _norm(name: str, other: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield f"{name}/gamma", (f"{other}.weight",)
    yield f"{name}/beta", (f"{other}.bias",)


def load_whisper(folder: str | Path) -> tuple[Any, Any]:
    """Load Whisper as CTranslate2 keeps it: model.bin, config.json and tokenizer.json.

    Args:
        folder: holds the three files.

    Returns:
        A `WhisperForConditionalGeneration` in float32 and eval mode, and its `WhisperProcessor`.

    Raises:
        ValueError: for files of another model or format.
    """
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    folder = Path(folder)
    variables = read_variables(folder / "model.bin")
    sizes, notes = whisper_sizes(variables), json.loads((folder / "config.json").read_text(encoding="utf-8"))
    processor = _processor(folder / "tokenizer.json", sizes)
    ids = processor.tokenizer.get_vocab()
    model = WhisperForConditionalGeneration(WhisperConfig(**sizes, **_special(ids))).eval()
    absent, foreign = model.load_state_dict(whisper_weights(variables, sizes), strict=False)
    if foreign or absent != ["proj_out.weight"]:  # which is tied to the embedding
        raise ValueError(f"{folder} lacks {', '.join(absent)}: the file holds another model than Whisper")
    model.generation_config = _generation_config(ids, notes, sizes)
    return model, processor


def _special(ids: Mapping[str, int]) -> dict[str, Any]:
    end = ids["<|endoftext|>"]
    return {"decoder_start_token_id": ids["<|startoftranscript|>"], "bos_token_id": end, "eos_token_id": end, "pad_token_id": end}


def _generation_config(ids: Mapping[str, int], notes: Mapping[str, Any], sizes: Mapping[str, Any]) -> Any:
    """What the model's own `generate` reads. Models of English alone take no tokens of languages and tasks."""
    from transformers import GenerationConfig

    many = sizes["vocab_size"] >= _MULTILINGUAL
    languages = {token: number for token, number in ids.items() if re.fullmatch(r"<\|[a-z]{2,3}\|>", token)}
    tasks = {name: ids[f"<|{name}|>"] for name in ("transcribe", "translate")}
    return GenerationConfig(
        **_special(ids),
        max_length=sizes["max_target_positions"],
        suppress_tokens=notes["suppress_ids"],
        begin_suppress_tokens=notes["suppress_ids_begin"],
        alignment_heads=notes["alignment_heads"],
        no_timestamps_token_id=ids["<|notimestamps|>"],
        prev_sot_token_id=ids["<|startofprev|>"],
        return_timestamps=False,
        max_initial_timestamp_index=50,  # as published: speech begins within the first second
        is_multilingual=many,
        **({"lang_to_id": languages, "task_to_id": tasks, "task": "transcribe"} if many else {}),
    )


def _processor(path: Path, sizes: Mapping[str, Any]) -> Any:
    """The processor of a tokenizer.json, for features of the model's size."""
    from transformers import AutoTokenizer, WhisperFeatureExtractor, WhisperProcessor

    end: dict[str, Any] = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "<|endoftext|>")
    added = [each["content"] for each in json.loads(path.read_text(encoding="utf-8"))["added_tokens"]]
    end["additional_special_tokens"] = [token for token in added if re.fullmatch(r"<\|[a-z]+\|>", token)]  # times are none
    with TemporaryDirectory() as folder:
        shutil.copyfile(path, Path(folder, "tokenizer.json"))
        Path(folder, "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "WhisperTokenizer", **end}), encoding="utf-8")
        tokenizer = AutoTokenizer.from_pretrained(folder)
    seconds = sizes["max_source_positions"] // 50  # a position lasts 20 ms
    return WhisperProcessor(WhisperFeatureExtractor(feature_size=sizes["num_mel_bins"], chunk_length=seconds), tokenizer)
