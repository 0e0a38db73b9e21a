"""Make a recommender from nothing: a small Llama that writes the next item's semantic id after those of a user's history.

    python recsys/train_target.py                                       (mini recsys, 25 minutes on one CPU core)
    python recsys/train_target.py --data amazon-beauty --steps 6600     (30 minutes)
    python recsys/train_target.py --steps 1600 --work build/narrow --out build/narrow/mini \
        --model '{"hidden_size": 64, "intermediate_size": 176, "num_attention_heads": 2, "num_hidden_layers": 4}'
    python recsys/train_target.py --deepen build/narrow/mini/target 48 --steps 1800 --precision no --lr 1e-3 --work build/deep \
        --out mmspec/minis/recsys-deep                                   (mini recsys-deep, 40 minutes on two CPU cores)

shop: simulated customers, none seen twice. amazon-beauty (MMSPEC_DATA, default ../shared/data; not shipped): Amazon 2014 Beauty with the
ids beside it, leave-one-out. The state that ranks best is kept. --deepen adds layers that pass their input on. A stopped run goes on.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.minis.items import write_facts
from mmspec.minis.shop import Shop, examples
from mmspec.minis.weights import llama
from mmspec.recsys import Catalogue, metrics, recommend
from mmspec.recsys.baselines import CoOccurrence
from mmspec.recsys.histories import Data, batches, beauty
from mmspec.recsys.semantic_ids import make
from mmspec.train import Fit
from mmspec.train.deeper import deepened_model
from mmspec.train.parallel import refuse_several_processes
from mmspec.train.recommender.best_state import fit_best
from mmspec.train.recommender.split import last_items
from mmspec.utils.files import write_json
from mmspec.utils.recipe_options import RecipeParser, run_recipe, tell_command

OFFSET = 2  # tokens 0 (padding) and 1 (start) are no codes
WRITTEN = {"offset": OFFSET, "before": (1,), "most": 20}
SETS = {
    "shop": {
        "codes": 64,
        "within": 1,  # how far apart co-occurrence counts, at its best
        "plan": {"lr": 2e-3, "weight_decay": 0.1},
        "batch": {"rows": 96, "drop": 0.0},
        "model": {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 5, "num_attention_heads": 6},
    },
    "amazon-beauty": {  # small and often told different things: it would soon know its users by heart
        "codes": 256,
        "within": 5,
        "plan": {"lr": 1.5e-3, "weight_decay": 0.3},
        "batch": {"rows": 128, "drop": 0.15},  # drop is the attention's dropout, too
        "model": {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4, "num_attention_heads": 4},
    },
}


def read(name: str, ids: str, past: int) -> Data:
    if name != "shop":
        return beauty(Path(os.environ.get("MMSPEC_DATA", "../shared/data")) / name, ids, **WRITTEN)
    shop, size = Shop.of(), SETS[name]["codes"]
    codes = make(torch.from_numpy(shop.embeddings), levels=4, size=size)
    return examples(Catalogue.of_codes(range(len(shop)), codes, size, names=shop.names, **WRITTEN), past)


def model_for(levels: int, codes: int, sizes: dict) -> LlamaForCausalLM:
    """A Llama over all codes, used or not; the vocabulary is a multiple of 4."""
    vocabulary = -(-(OFFSET + levels * codes) // 4) * 4
    tokens = {"vocab_size": vocabulary, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0, "max_position_embeddings": 128}
    return LlamaForCausalLM(LlamaConfig(**sizes, **tokens, num_key_value_heads=2, tie_word_embeddings=True))


def ranked(model: nn.Module, catalogue: Catalogue, histories: Sequence[Sequence]) -> list:
    """The ten best items of each history without its last one."""
    parts = [[items[:-1] for items in histories[n : n + 100]] for n in range(0, len(histories), 100)]
    return [items for part in parts for items in recommend(model, part, k=10, catalogue=catalogue, method="plain").items]


def report(found: list, histories: Sequence[Sequence], items: int) -> dict[str, float]:
    truths, shown = [row[-1:] for row in histories], metrics.coverage(found, 10, items)
    return {"recall@10": metrics.recall(found, truths, 10), "NDCG@10": metrics.ndcg(found, truths, 10), "coverage@10": shown}


def compared(model: nn.Module, data: Data, test: Sequence[Sequence], past: Sequence[Sequence], within: int) -> dict[str, dict[str, float]]:
    """The model beside what counts in `past`."""
    rankings = {"model": ranked(model, data.catalogue, test)}
    for name, reach in (("co-occurrence", within), ("popularity", 0)):
        rankings[name] = CoOccurrence.of(past, reach).recommend([items[:-1] for items in test], 10)
    return {name: report(found, test, len(data.catalogue)) for name, found in rankings.items()}


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--data", choices=SETS, default="shop")
    parser.add_argument("--ids", choices=("rqvae", "rqkmeans"), default="rqvae", help="semantic ids of amazon-beauty")
    parser.add_argument("--work", type=Path, help="default build/recsys-DATA")
    parser.add_argument("--out", type=Path, help="default mmspec/minis/recsys; WORK/mini for amazon-beauty")
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--model", type=dict, default={}, help='entries of the config in JSON, such as {"hidden_size": 64}')
    parser.add_argument("--deepen", nargs=2, metavar=("FOLDER", "N"), help="begin with this model and add layers until there are N")
    parser.add_argument("--users", type=int, help="test on no more users than this")
    parser.add_argument("--precision", choices=("bf16", "no"), default="bf16")
    parser.add_argument("--lr", type=float, help="peak learning rate; default 0.002 for shop, 0.0015 for amazon-beauty")
    parser.add_argument("--smoke", action="store_true", help="two steps of a tiny model on the simulated shop")
    args = parser.parse_args()
    refuse_several_processes()
    args.data = "shop" if args.smoke else args.data
    args.work = args.work or Path(f"build/recsys-{args.data}")
    args.out = args.out or (Path("mmspec/minis/recsys") if args.data == "shop" and not args.smoke else args.work / "mini")
    torch.manual_seed(0)
    chosen, data = SETS[args.data], read(args.data, args.ids, 500 if args.smoke else 50_000)
    if args.smoke:
        chosen, args.steps, args.users = {**chosen, "batch": {"rows": 4}, "model": {**chosen["model"], "num_hidden_layers": 1}}, 2, 8
    small, dropout = args.deepen and llama(Path(args.deepen[0])), chosen["batch"].get("drop", 0.0)
    sizes = {"attention_dropout": dropout} | chosen["model"] | args.model
    if small:
        sizes |= {name: getattr(small.config, name) for name in sizes} | {"num_hidden_layers": int(args.deepen[1])}
    model = model_for(data.catalogue.levels, chosen["codes"], sizes)
    model = deepened_model(small, model) if small else model
    batch = batches(data, **chosen["batch"])
    held, test = data.held[: args.users], data.test[: args.users]

    def loss(example: nn.Module, turn: int) -> Tensor:
        return example(**batch(turn)).loss

    def rank(example: nn.Module) -> dict[str, float]:
        return report(ranked(example, data.catalogue, held), held, len(data.catalogue))

    begun, rates = time.perf_counter(), chosen["plan"] | ({} if args.lr is None else {"lr": args.lr})
    plan = Fit(steps=args.steps, warmup=100, checkpoint_every=max(1, args.steps // 10), mixed_precision=args.precision, **rates)
    kept = fit_best(model, loss, plan, args.work, rank, last_items(data))
    minutes = (time.perf_counter() - begun) / 60
    past = data.users(0, args.steps * chosen["batch"]["rows"]) if args.data == "shop" else data.past  # as many as the model has seen
    table = compared(model, data, test, past, chosen["within"])
    print("\n".join(f"{name:30}" + "".join(f"  {key} {value:.4f}" for key, value in row.items()) for name, row in table.items()))
    facts = {"name": args.out.name, "layers": sizes["num_hidden_layers"], "width": sizes["hidden_size"], "steps": args.steps}
    facts |= {"parameters": model.num_parameters(), "kept": kept["step"], "minutes": minutes, "users": len(test), "table": table}
    model.half().save_pretrained(args.out / "target")
    data.catalogue.write(args.out / "catalogue.parquet")
    write_json(args.work / "facts.json", facts)
    if args.data == "shop":
        write_facts(args.out, "target", facts)
    tell_command("mmspec", "recommend", "--history", ",".join(map(str, data.test[0][:3])), "--model", args.out)


if __name__ == "__main__":
    run_recipe(main)
