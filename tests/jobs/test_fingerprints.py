"""Equal weights are equal wherever they come from; a single changed number is seen."""

import torch

from mmspec.jobs import weights


def made(seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to(dtype)


def test_weights_are_told_apart_by_value_name_and_dtype():
    assert weights(made()) == weights(made())
    changed, renamed = made(), torch.nn.ModuleDict({"a": made()[0], "1": made()[1]})
    changed[0].weight.data[2, 1] += 1e-6
    found = [weights(m) for m in (made(), made(1), made(dtype=torch.bfloat16), changed, renamed, made().double())]
    assert len(set(found)) == len(found)
