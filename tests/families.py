"""The model families mmspec drives, as small random models, and the table in docs/families.md that is made from them.

python tests/families.py > docs/families.md
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf

VOCAB = 60
SMALL = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 128}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = {**SMALL, **IDS, "intermediate_size": 64, "num_key_value_heads": 2}
SEQ2SEQ = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    **IDS,
}
GEMMA_LAYERS = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]


@dataclass(frozen=True)
class Case:
    make: Callable[[], Any]
    kind: str
    note: str = ""


def t5() -> Any:
    sizes = {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    return hf.T5ForConditionalGeneration(hf.T5Config(**sizes, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1))


def whisper() -> Any:
    config = hf.WhisperConfig(
        **SEQ2SEQ,
        max_source_positions=50,
        max_target_positions=64,
        num_mel_bins=16,
        decoder_start_token_id=3,
        suppress_tokens=[0, 5, 6],
        begin_suppress_tokens=[7],
    )
    return hf.WhisperForConditionalGeneration(config)


def gpt2() -> Any:
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128, **IDS))


def bart() -> Any:
    config = hf.BartConfig(**SEQ2SEQ, max_position_embeddings=128, decoder_start_token_id=2, forced_eos_token_id=None)
    return hf.BartForConditionalGeneration(config)


def gemma3() -> Any:
    sizes = {**LLAMA, "num_hidden_layers": 4, "head_dim": 8}
    return hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**sizes, sliding_window=8, layer_types=GEMMA_LAYERS))


FAMILIES = {
    "Llama": Case(lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA)), "decoder"),
    "Qwen2": Case(lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**LLAMA)), "decoder"),
    "Qwen3": Case(lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**LLAMA, head_dim=8)), "decoder"),
    "Mistral": Case(lambda: hf.MistralForCausalLM(hf.MistralConfig(**LLAMA, sliding_window=8)), "decoder", "past its sliding window"),
    "Gemma-3": Case(gemma3, "decoder", "full and sliding layers mixed"),
    "Phi-3": Case(lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**LLAMA)), "decoder"),
    "GPT-2": Case(gpt2, "decoder", "learned positions"),
    "GPT-NeoX": Case(lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**SMALL, **IDS, intermediate_size=64)), "decoder"),
    "OPT": Case(
        lambda: hf.OPTForCausalLM(hf.OPTConfig(**SMALL, **IDS, ffn_dim=64, word_embed_proj_dim=32)), "decoder", "learned positions"
    ),
    "T5": Case(t5, "encoder-decoder", "relative position bias per column"),
    "BART": Case(bart, "encoder-decoder", "learned positions per column"),
    "Whisper": Case(whisper, "encoder-decoder, audio in", "suppressed tokens honoured; audio of one window"),
}

MAMBA2 = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_heads": 4,
    "head_dim": 16,
    "state_size": 8,
    "n_groups": 1,
    "chunk_size": 8,
}
QWEN3_NEXT = {
    **LLAMA,
    "head_dim": 8,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
REFUSED = {
    "Mamba-2": Case(lambda: hf.Mamba2ForCausalLM(hf.Mamba2Config(**MAMBA2)), "recurrent"),
    "Qwen3-Next": Case(lambda: hf.Qwen3NextForCausalLM(hf.Qwen3NextConfig(**QWEN3_NEXT)), "hybrid"),
}


def build(case: Case, seed: int = 0) -> Any:
    """The model in eval mode, its weights spread so that greedy decoding does not sit in a loop."""
    torch.manual_seed(seed)
    model = case.make().eval()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.15)
    model.generation_config.max_length = None
    return model


def inputs_for(name: str, rows: int, pad: str = "left", seed: int = 1) -> dict[str, torch.Tensor]:
    """One prompt, or ragged ones padded on the given side."""
    torch.manual_seed(seed)
    if name == "Whisper":
        return {"input_features": torch.randn(rows, 16, 100)}
    ids, mask = torch.randint(3, VOCAB, (rows, 12)), torch.ones(rows, 12, dtype=torch.long)
    for row, missing in enumerate((5, 0, 2)[:rows] if rows > 1 else ()):
        columns = slice(0, missing) if pad == "left" else slice(12 - missing, 12)
        mask[row, columns] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def table() -> str:
    lines = [
        "# Model families",
        "",
        "Made by `python tests/families.py` from the cases in `tests/text/test_families.py`: every supported family gives the tokens of",
        "`generate(do_sample=False)` in fp32, alone and in a ragged batch of three, as a chain and as a tree, from a small random model.",
        "",
        "| family | kind | what its test covers besides |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | {case.kind} | {case.note} |" for name, case in FAMILIES.items()]
    lines += ["", "Refused at once, with one clear line, because their state cannot be rolled back after a rejected draft:", ""]
    lines += [f"- {name} ({case.kind})" for name, case in REFUSED.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
