"""Small random CosyVoice folders as published, and stand-ins for the package's flow decoder and vocoder."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

CODES, TEXT = 30, 150
EXTRAS = {2: 3, 3: 200}


class Published(nn.Module):
    """The modules whose weights `llm.pt` holds, under their names."""

    def __init__(self, version: int, layers: int = 2, seed: int = 0):
        super().__init__()
        torch.manual_seed(seed)
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
        config = Qwen2Config(vocab_size=TEXT, num_hidden_layers=layers, max_position_embeddings=2048, tie_word_embeddings=True, **sizes)
        values = CODES + EXTRAS[version]
        self.version = version
        self.llm = nn.Module()
        self.llm.model = Qwen2ForCausalLM(config)
        self.speech_embedding = nn.Embedding(values, 32)
        self.llm_decoder = nn.Linear(32, values, bias=version == 2)
        if version == 2:
            self.llm_embedding = nn.Embedding(2, 32)
        for parameter in self.parameters():
            parameter.data.mul_(5 if parameter.dim() > 1 else 1)
        self.llm_decoder.weight.data.mul_(0.6)
        if version == 3:  # 200 values that end a row are seldom the likeliest
            self.llm_decoder.weight.data[CODES:] *= 0.4
        self.eval()

    @torch.no_grad()
    def greedy(self, text: list[int], prompt_text: list[int] = (), codes: list[int] = ()) -> list[int]:
        """The published loop, the likeliest value drawn; every step runs the whole sequence."""
        table, speech = self.llm.model.get_input_embeddings(), self.speech_embedding.weight
        start, task = (
            (self.llm_embedding.weight[0], self.llm_embedding.weight[1]) if self.version == 2 else (speech[CODES], speech[CODES + 2])
        )
        told = table(torch.tensor([*prompt_text, *text]))
        x = torch.cat([start[None], told, task[None], speech[torch.tensor(list(codes), dtype=torch.long)]])[None]
        out: list[int] = []
        for step in range(20 * len(text)):
            hidden = self.llm.model(inputs_embeds=x, output_hidden_states=True).hidden_states[-1]
            scores = self.llm_decoder(hidden[:, -1]).log_softmax(-1)[0]
            if step < 2 * len(text):
                scores[CODES] = -torch.inf
            best = int(scores.argmax())
            if best >= CODES:
                break
            out.append(best)
            x = torch.cat([x, speech[best][None, None]], 1)
        return out


def tokenizer() -> Qwen2Tokenizer:
    """Qwen2's, of single bytes."""
    marks = [*(chr(code) for code in range(33, 127)), "Ġ", "<|endoftext|>"]
    return Qwen2Tokenizer(vocab={mark: place for place, mark in enumerate(marks)}, merges=[])


def cosyvoice_folder(place: Path, version: int, **options: Any) -> Published:
    """Write a folder; returns what its weights are of."""
    published = Published(version, **options)
    (place / "CosyVoice-BlankEN").mkdir(parents=True)
    published.llm.model.save_pretrained(place / "CosyVoice-BlankEN")
    tokenizer().save_pretrained(place / "CosyVoice-BlankEN")
    (place / f"cosyvoice{version}.yaml").write_text("sample_rate: 24000\n", encoding="utf-8")
    torch.save(published.state_dict(), place / "llm.pt")
    return published


class Flow:
    """As the package's model: `token2wav` in pieces, with a look-ahead of 3 codes, 4 samples a code, and noise."""

    def __init__(self) -> None:
        self.device, self.token_hop_len, self.token_max_hop_len = torch.device("cpu"), 5, 10
        self.flow = SimpleNamespace(pre_lookahead_len=3)
        self.hift_cache_dict: dict[str, Any] = {}
        self.silent_tokens = [1]
        self.asked: list[tuple[int, int, bool]] = []

    def token2wav(self, token, prompt_token, prompt_feat, embedding, token_offset, uuid, stream=False, finalize=False, speed=1.0):
        assert uuid in self.hift_cache_dict
        assert stream is not finalize
        self.asked.append((token_offset, token.shape[1], finalize))
        last = token.shape[1] if finalize else token.shape[1] - 3
        return (token[0, token_offset:last, None] + torch.randn(1, 4) + embedding.sum()).reshape(1, -1)


class Front:
    """As the package's frontend: a recording is its length in codes."""

    def __init__(self) -> None:
        self.spk2info: dict[str, Any] = {}
        self.tokenizer = tokenizer()

    def frontend_zero_shot(self, text, prompt_text, prompt_wav, rate, spk_id):
        import soundfile

        samples, _ = soundfile.read(prompt_wav)
        codes = torch.arange(len(samples) // 1000)[None] % CODES
        feat = torch.zeros(1, 2 * codes.shape[1], 80)
        return {"flow_prompt_speech_token": codes, "prompt_speech_feat": feat, "flow_embedding": torch.ones(1, 192) / 192}


def package() -> Any:
    """As a `CosyVoice2` object."""
    return SimpleNamespace(model=Flow(), frontend=Front(), sample_rate=24000)
