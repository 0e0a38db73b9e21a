"""Faults planted in mini text and its drafters: each costs acceptance or seconds, and has a name in `mmspec explain`."""

import copy
import json

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

import mmspec
from mmspec.bench.explain.costs import PairCosts
from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Keys
from mmspec.drafters.features.eagle import Eagle3
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.shapes import Chain

COSTS = PairCosts({1: 0.010, 2: 0.0102, 4: 0.0108, 8: 0.012, 16: 0.016}, step=0.001, prefill=0.02, draft_prefill=0.002)
"""Seconds of a pair that pays: a draft token costs a tenth of a step of the target."""


def renumbered(drafter: nn.Module, tokenizer: PreTrainedTokenizerFast) -> tuple[nn.Module, PreTrainedTokenizerFast]:
    """The drafter model with another tokenizer of the same size: the same tokens, under other ids."""
    size = drafter.config.vocab_size
    order = torch.cat([torch.arange(2), 2 + torch.randperm(size - 2, generator=torch.Generator().manual_seed(0))])
    other = copy.deepcopy(drafter)
    with torch.no_grad():  # its head shares these weights
        other.get_input_embeddings().weight[order] = drafter.get_input_embeddings().weight.clone()
    data = json.loads(tokenizer.backend_tokenizer.to_str())
    data["model"]["vocab"] = {token: int(order[number]) for token, number in data["model"]["vocab"].items()}
    names = {"eos_token": tokenizer.eos_token, "pad_token": tokenizer.pad_token, "padding_side": "left"}
    return other, PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(data)), **names)


def other_basis(target: LlamaForCausalLM) -> LlamaForCausalLM:
    """A target that writes the same and has other hidden states: their dimensions are permuted."""
    order = torch.randperm(target.config.hidden_size, generator=torch.Generator().manual_seed(1))
    other = copy.deepcopy(target)
    with torch.no_grad():
        for name, weight in other.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.copy_(weight[order])
            elif weight.dim() == 1:
                weight.copy_(weight[order])
            else:
                weight.copy_(weight[:, order])
    return other


def rounded(target: LlamaForCausalLM, bits: int) -> LlamaForCausalLM:
    """The target with the matrices of its layers rounded to `bits`, one scale a row."""
    other, most = copy.deepcopy(target), 2 ** (bits - 1) - 1
    with torch.no_grad():
        for name, weight in other.named_parameters():
            if weight.dim() == 2 and "embed" not in name:
                scale = weight.abs().amax(1, keepdim=True) / most
                weight.copy_((weight / scale).round() * scale)
    return other


def shifted(net: Eagle3, shift: int) -> Eagle3:
    """An EAGLE-3 drafter that reads other hidden states than it was trained on."""
    other = copy.copy(net)
    other.reads = tuple(state + shift for state in net.reads)
    return other


def with_half_the_vocabulary(net: Eagle3) -> Eagle3:
    """An EAGLE-3 drafter that knows every second of its tokens only."""
    ids = net.vocabulary[::2]
    made = Eagle3(**{**net.config, "values": len(ids)}).eval()
    weights = {name: weight for name, weight in net.state_dict().items() if name not in ("lm_head.weight", "d2t", "t2d")}
    made.load_state_dict(weights | {"lm_head.weight": net.lm_head.weight[::2], "d2t": made.d2t, "t2d": made.t2d})
    made.know(ids)
    return made


def by_itself(net: nn.Module) -> GuidedDrafter:
    """A drafter that draws its tokens with numbers of its own instead of the rule's."""

    def draw(distribution: Categorical, keys: Keys):
        return distribution.sample(keys.branch(1, first=5)[..., 0]), None

    return GuidedDrafter(net, Chain(draw))


class Rebased(nn.Module):
    """A layer whose input, output or both have their dimensions permuted."""

    def __init__(self, layer: nn.Module, order: Tensor, before: bool, after: bool):
        super().__init__()
        self.layer, self.order, self.back, self.before, self.after = layer, order, order.argsort(), before, after

    def forward(self, hidden_states: Tensor, *args, **options):
        out = self.layer(hidden_states[..., self.back] if self.before else hidden_states, *args, **options)
        return out[..., self.order] if self.after else out


def with_other_neighbours(target: LlamaForCausalLM, reads: tuple[int, ...]) -> LlamaForCausalLM:
    """A target that writes the same, whose hidden states but `reads` (and those at both ends) have their dimensions permuted."""
    order = torch.randperm(target.config.hidden_size, generator=torch.Generator().manual_seed(2))
    other, count = copy.deepcopy(target), target.config.num_hidden_layers
    moved = [state not in (0, count, *reads) for state in range(count + 1)]
    other.model.layers = nn.ModuleList(
        Rebased(layer, order, moved[place], moved[place + 1]) for place, layer in enumerate(other.model.layers)
    )
    return other


def scaled(model: LlamaForCausalLM, scale: float) -> LlamaForCausalLM:
    """The model with its logits multiplied: a flatter distribution, or a sharper one."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.model.norm.weight.mul_(scale)
    return other


class LastPosition(nn.Module):
    """Rotary embeddings up to a limit: all later tokens get the last position."""

    def __init__(self, own: nn.Module, limit: int):
        super().__init__()
        self.own, self.limit = own, limit

    def forward(self, x: Tensor, position_ids: Tensor):
        return self.own(x, position_ids.clamp(max=self.limit - 1))


def short(drafter: LlamaForCausalLM, limit: int) -> LlamaForCausalLM:
    """The drafter model with `limit` positions."""
    other = copy.deepcopy(drafter)
    other.config.max_position_embeddings = limit
    other.model.rotary_emb = LastPosition(other.model.rotary_emb, limit)
    return other


def templated(tokenizer: PreTrainedTokenizerFast, template: str) -> PreTrainedTokenizerFast:
    """The tokenizer with a chat template."""
    other = copy.deepcopy(tokenizer)
    other.chat_template = template
    return other


def questions() -> list[str]:
    """What the questions among the mini's examples ask, without the form it was trained on."""
    texts = mmspec.load("text").processor.batch_decode(mmspec.load("text").examples["input_ids"], skip_special_tokens=True)
    found = [text.removeprefix("Question: ").removesuffix("\nAnswer:") for text in texts if text.startswith("Question: ")]
    assert len(found) >= 4
    return found
