"""Probes of a model: logits of a session with slots, drafts and rollbacks against the model's own uncached forward of each path alone.

`Probe` runs cases on one model. A case is a batch of prompts and a list of rounds; a round scores a draft, chain or tree, and commits a
part of it. Every node's logits are compared with those of a plain forward of that row's ids up to the node, without cache and batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.records import PAD, Draft
from mmspec.models.columns import chain_scores, difference
from mmspec.models.compat import execution_device, generation_positions
from mmspec.models.families.encoder import EncoderStates
from mmspec.models.families.encoder_decoder import start_ids
from mmspec.models.module_copy import throwaway_copy
from mmspec.models.target import HFTarget

Path = tuple[int, ...]


@dataclass(frozen=True)
class ProbeRound:
    """Parents of a draft's tokens (column 0 is the pending token), and for each row the columns that are committed after it.

    `missing` is a row whose last draft token is absent, as in a row with a smaller budget than the others.
    """

    parents: tuple[int, ...]
    keep: tuple[tuple[int, ...], ...]
    missing: int | None = None

    @property
    def linear(self) -> bool:
        """True if the draft is a chain."""
        return self.parents == tuple(range(len(self.parents)))


CHAIN = (
    ProbeRound((0, 1, 2), ((1,), (1, 2), ())),
    ProbeRound((0, 1, 2), ((1, 2, 3), (), (1,)), missing=0),
)
TREE = (
    ProbeRound((0, 0, 1, 2, 2), ((2, 4), (1, 3), (2, 5)), missing=1),
    ProbeRound((0, 0, 1, 1, 3), ((1, 4), (2,), (1, 3, 5))),
    ProbeRound((0, 1), ((1,), (), (1,))),
)
ACROSS = (
    ProbeRound((0, 1, 2, 3), ((1, 2, 3), (1, 2), (1, 2, 3, 4))),
    ProbeRound((0, 1, 2, 3), ((1, 2, 3), (1, 2, 3), (1, 2, 3))),
    ProbeRound((0, 1, 2, 3), ((1, 2, 3, 4), (1,), (1, 2, 3))),
)
TREE_ACROSS = (
    ProbeRound((0, 1, 1, 2, 3, 5), ((1, 3, 5), (1, 2, 4), (1, 3, 5, 6))),
    ProbeRound((0, 1, 1, 2, 3, 5), ((1, 2, 4), (1, 3), (1, 3, 5))),
    ProbeRound((0, 1, 2, 3), ((1,), (), (1, 2))),
)
SHORT = (
    ProbeRound((0, 0, 1, 2), ((2, 4), (1, 3))),
    ProbeRound((0, 1), ((), ())),
)


class Probe:
    """Cases on one model, with the plain forwards they are compared with.

    Args:
        model: a transformers model in eval mode; it is not changed.
        family: what drives it.
        lengths: ids of each row's prompt.
        whole: a plain forward of a path stands for every prefix of it, as in causal models; else each prefix has a forward of its own.
    """

    batches = ((1, 0), (1, 2), (1, 0))
    single = (1,)

    def __init__(self, model: Any, family: Any, lengths: Sequence[int], whole: bool):
        self.model, self.family, self.whole = throwaway_copy(model), family, whole  # some forwards leave a mode behind
        self.device = execution_device(model)
        self._generator = torch.Generator().manual_seed(17)
        self._ids = usable_ids(model, family)
        self._known: dict[tuple[int, Path], Tensor] = {}
        self._sources = [self._source(5 + 4 * (row % 2) - row // 2) for row in range(len(lengths))]
        self.prompts = [self._prompt(length) for length in lengths]

    # --- what is compared ---------------------------------------------------------------------------------------------

    def error(self, rows: Sequence[int], rounds: Sequence[ProbeRound]) -> float:
        """The largest of `errors`."""
        return max(self.errors(rows, rounds))

    @torch.no_grad()
    def errors(self, rows: Sequence[int], rounds: Sequence[ProbeRound]) -> list[float]:
        """The difference of every node's logits from its plain forward's, as a share of their spread. Infinite for NaN."""
        found: list[tuple[int, Path, Tensor]] = []
        session, pending = HFTarget(self.model, self.family).begin(self._inputs(rows))
        committed = [self.prompts[row] for row in rows]
        committed = [path[:-1] for path in committed]  # the last id is the pending token
        for each in rounds:
            draft = self._draft(pending, each)
            logits = session.score(draft).p.scores
            found += self._nodes(draft, logits, rows, committed)
            keep = self._keep(each, draft)
            session.commit(keep, max(len(row) for row in each.keep[: len(rows)]) + 1)
            committed = [
                path + tuple(draft.nodes[row, [c for c in keep[row].tolist() if c >= 0]].tolist()) for row, path in enumerate(committed)
            ]
            pending = Draft.root(self._draw(len(rows)), draft.start + (keep >= 0).sum(1))
        longest_first = sorted(found, key=lambda each: -len(each[1]))  # so that one plain forward serves all its prefixes
        return [difference(logits, self.plain(row, path)) for row, path, logits in longest_first]

    def plain(self, row: int, path: Path) -> Tensor:
        """The logits [V] after `path`, by the model's own forward of this row alone."""
        if (row, path) not in self._known:
            logits = self.forward(row, path)
            for length in range(1, len(path) + 1) if self.whole else (len(path),):
                self._known.setdefault((row, path[:length]), logits[length - 1])
        return self._known[row, path]

    @torch.no_grad()
    def forward(self, row: int, path: Path) -> Tensor:
        """Logits [T, V] of a plain forward, in float32."""
        ids = torch.tensor([path], device=self.device)
        if not self.model.config.is_encoder_decoder:
            return self.model(input_ids=ids, **generation_positions(self.model, ids), use_cache=False).logits[0].float()
        source = dict(self._sources[row])
        if "encoder_outputs" in source:
            source["encoder_outputs"] = EncoderStates(last_hidden_state=source["encoder_outputs"])
        return self.model(**source, decoder_input_ids=ids, use_cache=False).logits[0].float()

    @torch.no_grad()
    def scores(self, rows: Sequence[int], *parts: Tensor) -> Tensor:
        """Logits [B, T, V] of chains behind the prompts of `rows`; see `ColumnProbe.scores`."""
        session, pending = HFTarget(self.model, self.family).begin(self._inputs(rows))
        return chain_scores(session, pending, parts, lambda p, columns: p.scores)

    def control(self, row: int) -> float:
        """The difference of plain cached decoding of a row alone, one token a forward, from the uncached forward: rounding."""
        return self.error((row,), (ProbeRound((), ((),)),) * 4)

    # --- drafts -------------------------------------------------------------------------------------------------------

    def _draft(self, pending: Draft, each: ProbeRound) -> Draft:
        rows, count = len(pending.nodes), len(each.parents)
        if count == 0:
            return pending
        nodes = torch.stack([self._draw(count) for _ in range(rows)])
        for first, second in ((a, b) for b in range(count) for a in range(b) if each.parents[a] == each.parents[b]):
            same = nodes[:, first] == nodes[:, second]
            nodes[:, second] = torch.where(same, self._other(nodes[:, first]), nodes[:, second])  # siblings differ
        parents = torch.tensor(each.parents, device=self.device).expand(rows, -1).clone()
        if each.missing is not None and each.missing < rows:
            parents[each.missing, -1] = PAD
        siblings = max(each.parents.count(parent) for parent in each.parents)
        return pending.extend(nodes, parents, linear=each.linear, width=siblings, levels=None if each.linear else count)

    def _keep(self, each: ProbeRound, draft: Draft) -> Tensor:
        rows = len(draft.nodes)
        columns = [[0, *(c for c in each.keep[row] if draft.parents[row, c] != PAD)] for row in range(rows)]
        longest = max(map(len, columns))
        return torch.tensor([row + [-1] * (longest - len(row)) for row in columns], device=self.device)

    def _nodes(self, draft: Draft, logits: Tensor, rows: Sequence[int], committed: Sequence[Path]) -> list[tuple[int, Path, Tensor]]:
        found = []
        parents, nodes = draft.parents.tolist(), draft.nodes.tolist()
        for place, row in enumerate(rows):
            for column in range(draft.size):
                if parents[place][column] == PAD:
                    continue
                path, above = [], column
                while above >= 0:
                    path.append(nodes[place][above])
                    above = parents[place][above]
                found.append((row, committed[place] + tuple(reversed(path)), logits[place, column]))
        return found

    # --- ids and inputs -----------------------------------------------------------------------------------------------

    def draw(self, rows: int, columns: int) -> Tensor:
        """Random ids [rows, columns] that stand for words."""
        return self._draw(rows * columns).unflatten(0, (rows, columns))

    def _draw(self, count: int) -> Tensor:
        picks = torch.randint(len(self._ids), (count,), generator=self._generator)
        return self._ids[picks].to(self.device)

    def _other(self, ids: Tensor) -> Tensor:
        """The next usable id after each of `ids`."""
        place = (self._ids.to(ids.device)[None] == ids[:, None]).long().argmax(1)
        return self._ids.to(ids.device)[(place + 1) % len(self._ids)]

    def _prompt(self, length: int) -> Path:
        ids = self._draw(length).tolist()
        if self.model.config.is_encoder_decoder:
            ids[0] = start_ids(self.model)[0]
        return tuple(ids)

    def _source(self, length: int) -> dict[str, Any]:
        """The input of one row's encoder, or random states in place of its output if it reads no text."""
        config = self.model.config
        if not config.is_encoder_decoder:
            return {}
        if self.model.main_input_name == "input_ids":
            return {"input_ids": self._draw(length)[None], "attention_mask": torch.ones(1, length, dtype=torch.long, device=self.device)}
        width = _width(self.model)
        states = torch.randn(1, 8, width, generator=self._generator)
        return {"encoder_outputs": states.to(self.device, self.model.dtype)}

    def _inputs(self, rows: Sequence[int]) -> dict[str, Any]:
        """The batch of `rows`, padded on the left."""
        ids, mask = _padded([self.prompts[row] for row in rows], self.device)
        if not self.model.config.is_encoder_decoder:
            return {"input_ids": ids, "attention_mask": mask}
        found: dict[str, Any] = {"decoder_input_ids": ids, "decoder_attention_mask": mask}
        sources = [self._sources[row] for row in rows]
        if "encoder_outputs" in sources[0]:
            return found | {"encoder_outputs": (torch.cat([source["encoder_outputs"] for source in sources]),)}
        ids, mask = _padded([tuple(source["input_ids"][0].tolist()) for source in sources], self.device, left=False)
        return found | {"input_ids": ids, "attention_mask": mask}


def _width(model: Any) -> int:
    """The width of the states that the decoder gets: the encoder's own if the model's config does not state it."""
    encoder = getattr(model.get_encoder(), "config", None)
    found = [getattr(config, name, None) for config in (model.config, encoder) for name in ("d_model", "hidden_size")]
    return next(width for width in found if width is not None)


def usable_ids(model: Any, family: Any) -> Tensor:
    """Ids that stand for words: at most 64 of the vocabulary, without special tokens and placeholders."""
    text = model.config.get_text_config(decoder=True)
    source = model.config.get_text_config(encoder=True) if model.config.is_encoder_decoder else text
    size = min(getattr(config, "vocab_size", None) or text.vocab_size for config in (text, source))
    banned = {0, 1, 2, *getattr(family, "placeholders", ()), *getattr(family, "never_generated_ids", ())}
    for config in (model.config, text):
        for name, value in config.to_dict().items():
            if name.endswith(("token_id", "token_index")):
                banned |= {value} if isinstance(value, int) else set(value) if isinstance(value, (list, tuple)) else set()
    step = max(1, size // 67)
    found = [number for number in range(3, size, step) if number not in banned][:64]
    return torch.tensor(found or list(range(size)))


def _padded(rows: Sequence[Path], device: torch.device, left: bool = True) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows))
    ids, mask = torch.zeros(len(rows), longest, dtype=torch.long), torch.zeros(len(rows), longest, dtype=torch.long)
    for row, path in enumerate(rows):
        columns = slice(longest - len(path), longest) if left else slice(0, len(path))
        ids[row, columns], mask[row, columns] = torch.tensor(path), 1
    return ids.to(device), mask.to(device)
