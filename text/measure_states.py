"""What committing recurrent states costs a round, in counts: mixers run again on what was kept, against states kept after every column.

    python text/measure_states.py                                   # small random models of three families
    python text/measure_states.py --model FOLDER --columns 2 4 8 16 --out states.json

A round is one forward over a pending token and draft tokens, and the commit of a part of them, without a drafter. Printed for every way:
runs of a mixer (calls of its forward), columns that it ran a row, and aten operations of the whole round, absolute and relative to a
round of plain decoding (one column). Counts depend on the model and the software only, not on the machine.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from mmspec.bench.operations import operations
from mmspec.core.records import Draft
from mmspec.models.families.registry import family_of
from mmspec.models.recurrent.mixer_run import MixerRun
from mmspec.models.target import HFTarget
from mmspec.utils.files import write_json
from mmspec.utils.places import RecipeParser
from mmspec.utils.provenance import provenance

_ALL = {"hidden_size": 64, "vocab_size": 128, "num_hidden_layers": 4, "pad_token_id": 0}
_ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128}
_KINDS = {"layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"]}
_LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
_SSM = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "shared_intermediate_size": 64}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3_next": {**_ALL, **_ATTENTION, **_KINDS, **_LINEAR, **_EXPERTS},
    "granitemoehybrid": {**_ALL, **_ATTENTION, **_KINDS, **_SSM, "num_local_experts": 0},
    "mamba": {**_ALL, "state_size": 16},
}
BRANCHES = {2: (0,), 4: (0, 0, 1), 8: (0, 0, 0, 1, 1, 4, 4), 16: (0, 0, 0, 0, 1, 1, 1, 5, 5, 5, 8, 8, 8, 11, 11)}
"""Parents of draft tokens in trees of so many columns."""


def measured(model: Any, columns: int, kept: Sequence[int], way: str) -> dict[str, Any]:
    """The counts of the third round, in which row r keeps `kept[r]` of `columns`."""
    rows, family = len(kept), family_of(model)
    target = HFTarget(model, replace(family, checkpoints=way == "checkpoints"))
    ids = torch.randint(3, 100, (rows, 12), generator=torch.Generator().manual_seed(0))
    session, pending = target.begin({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    for _ in range(2):  # a prompt, and what is done only once
        session.score(pending)
        session.commit(torch.zeros(rows, 1, dtype=torch.long), 1)
        pending = Draft.root(ids[:, 0], pending.start + 1)
    draft, tokens = pending, ids.repeat(1, -(-columns // ids.shape[1]))[:, 1:columns]
    if columns > 1 and way == "tree":
        draft = pending.extend(tokens, torch.tensor(BRANCHES[columns]).repeat(rows, 1), width=3, levels=columns)
    elif columns > 1:
        draft = pending.extend(tokens, torch.arange(columns - 1).repeat(rows, 1), linear=True)
    place = torch.arange(columns).repeat(rows, 1)
    keep = torch.where(place < torch.tensor(kept)[:, None], place, -1) if way != "tree" else _paths(draft, kept)
    runs, seen, over = [0], [0], MixerRun.over

    def counted(self: MixerRun, x: torch.Tensor, *rest: Any, **more: Any) -> Any:
        runs[0] += 1
        seen[0] += x.shape[0] * x.shape[1]
        return over(self, x, *rest, **more)

    def one_round() -> None:
        session.score(draft)
        session.commit(keep, max(kept))

    with patch.object(MixerRun, "over", counted):
        found = operations(one_round)
    mixers = len(session.recurrent.layers)
    return {"runs": runs[0] / mixers, "ran": seen[0] / mixers / rows, "operations": found.total}


def _paths(draft: Draft, kept: Sequence[int]) -> torch.Tensor:
    """The first `kept[r]` columns on the path to the last column, -1 behind them."""
    path, at = [], draft.size - 1
    while at >= 0:
        path, at = [at, *path], int(draft.parents[0, at])
    longest = max(kept)
    return torch.tensor([[*path[:count], *[-1] * (longest - len(path[:count]))] for count in kept])


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--model", type=Path, help="a model with states, instead of small random ones")
    parser.add_argument("--columns", type=int, nargs="+", default=[4, 8], help="of a round: the pending token and draft tokens")
    parser.add_argument("--out", type=Path, help="JSON with every count")
    parser.add_argument("--smoke", action="store_true", help="one family, one number of columns")
    args = parser.parse_args()
    torch.manual_seed(0)
    names = [str(args.model)] if args.model else ["qwen3_next"] if args.smoke else list(MODELS)
    found = []
    for name in names:
        made = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **MODELS[name])) if name in MODELS else None
        model = (AutoModelForCausalLM.from_pretrained(name) if made is None else made).float().eval()
        plain = {rows: measured(model, 1, [1] * rows, "replay")["operations"] for rows in (1, 3)}
        for columns in [4] if args.smoke else args.columns:
            for kept in ([columns], [columns // 2], [1], [columns, columns // 2, 1]):
                for way in ("replay", "checkpoints", *(["tree"] if columns in BRANCHES and max(kept) <= 2 else [])):
                    counts = measured(model, columns, kept, way)
                    counts["to plain"] = round(counts["operations"] / plain[len(kept)], 2)
                    found.append({"model": Path(name).name, "columns": columns, "kept": kept, "way": way} | counts)
    print("| model | columns | kept, by row | way | runs of a mixer | columns it ran | operations | times plain |")
    print("|---|---|---|---|---|---|---|---|")
    for row in found:
        shown = ", ".join(map(str, row["kept"]))
        counts = f"{row['runs']:g} | {row['ran']:.3g} | {row['operations']} | {row['to plain']}"
        print(f"| {row['model']} | {row['columns']} | {shown} | {row['way']} | {counts} |")
    if args.out is not None:
        write_json(args.out, {"rows": found, "provenance": provenance(torch.device("cpu"))})


if __name__ == "__main__":
    main()
