"""docs/drop-in.md: how the drop-in treats every argument, setting, processor and criterion of `generate`.

python -m tests.drop_in_table > docs/drop-in.md
"""

from transformers.generation import stopping_criteria

from mmspec.run.drop_in import processors as drop_in_processors
from mmspec.run.drop_in import stops as drop_in_stops
from mmspec.run.drop_in.arguments import ARGUMENTS, FIELDS, INPUTS, NATIVE, NO_EFFECT, PLAIN, REFUSED

ORDER = (NATIVE, PLAIN, REFUSED, NO_EFFECT)
INTRODUCTION = """# Arguments of `generate` in the drop-in

After this page you know what `custom_generate=mmspec.text.speculate(drafter)` does with each argument, setting, processor and criterion.

Written by `python -m tests.drop_in_table` from the tables that `mmspec.text.speculate` itself reads; for the versions of transformers
that mmspec takes, and the names of 5.24.

| treatment | meaning |
|---|---|
| honoured | mmspec drafts, and the output is that of `generate`: greedy token by token, sampled from the same distributions |
| honoured without drafting | transformers' own loop decodes, and a warning says why. Sampled tokens are drawn with mmspec's noise |
| refused | ValueError, in one line that names the argument |
| no effect on the output | neither here nor in `generate` |

A setting that a later transformers adds is refused until mmspec knows it. `cache_implementation="paged"` never reaches the drop-in:
transformers runs its continuous batching instead. Outputs with `return_dict_in_generate` have `sequences` only.

What `generate` has no argument for is given to `speculate`, among it `view=` and `stop_below=` as `mmspec.text.generate` takes them.

Your own logits processors and stopping criteria may keep a state, so transformers' own loop runs them, once a step over the whole batch. If
yours is a function of one row's padded ids [1, L] and scores [1, V], declare it, and mmspec drafts:

```python
from transformers import LogitsProcessor


class Mine(LogitsProcessor):
    mmspec_stateless = True
```

or `speculate(drafter, stateless=(Mine,))`.

Without `seed=`, sampling draws a seed from torch's global generator: two calls differ, and `torch.manual_seed` repeats them."""


def section(title: str, head: str, rows: list[tuple[str, str, str]]) -> list[str]:
    rows = sorted(rows, key=lambda row: ORDER.index(row[1]))
    return [
        "",
        f"## {title}",
        "",
        f"| {head} | how | note |",
        "|---|---|---|",
        *(f"| {name} | {how} | {note} |" for name, how, note in rows),
    ]


def named(found: dict[str, tuple[str, str]]) -> list[tuple[str, str, str]]:
    return [(f"`{name}`" if name.isidentifier() else name, how, note) for name, (how, note) in found.items()]


def processors() -> list[tuple[str, str, str]]:
    forms = [(f"`{kind.__name__}`", NATIVE, "") for kind in sorted(drop_in_processors.FORMS, key=lambda kind: kind.__name__)]
    plain = [(f"`{kind.__name__}`", PLAIN, why) for kind, why in drop_in_processors.WITHOUT_DRAFTING.items()]
    return [*forms, *plain, ("any other class", PLAIN, "unless it is declared stateless")]


def criteria() -> list[tuple[str, str, str]]:
    notes = {stopping_criteria.MaxTimeCriteria: "checked at each committed token: up to one round later"}
    forms = [(f"`{kind.__name__}`", NATIVE, notes.get(kind, "")) for kind in drop_in_stops.FORMS]
    plain = [(f"`{kind.__name__}`", PLAIN, why) for kind, why in drop_in_stops.WITHOUT_DRAFTING.items()]
    return [*forms, *plain, ("any other class", PLAIN, "unless it is declared stateless")]


def table() -> str:
    lines = [INTRODUCTION]
    lines += section("Arguments of generate", "argument", named(ARGUMENTS))
    lines += section("What the model reads", "keyword", named(INPUTS))
    lines += section("Settings (GenerationConfig)", "field", named(FIELDS))
    lines += section("Logits processors", "class", processors())
    lines += section("Stopping criteria", "class", criteria())
    lines += ["", "PEFT: LoRA and kin are drafted for; prompt and prefix tuning are honoured without drafting."]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
