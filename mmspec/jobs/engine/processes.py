"""This process's place among the processes of a launch, read from the environment that `torchrun` and `accelerate launch` set."""

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Processes:
    """Process `rank` of `world`; `local` is its number on this machine, by which it chooses a device.

    Args:
        rank: from 0 to `world` - 1.
        world: number of processes.
        local: number on this machine.

    Raises:
        ValueError: for a rank out of range.
    """

    rank: int = 0
    world: int = 1
    local: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ValueError(f"process {self.rank} of {self.world}: RANK must be from 0 to WORLD_SIZE - 1")

    @classmethod
    def here(cls) -> "Processes":
        """Read the environment variables RANK, WORLD_SIZE and LOCAL_RANK.

        Returns:
            This process; one process of one where they are not set.

        Raises:
            ValueError: if only one of RANK and WORLD_SIZE is set, or one is not a whole number.
        """
        given = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
        if (given["RANK"] is None) != (given["WORLD_SIZE"] is None):
            raise ValueError("RANK and WORLD_SIZE belong together: set both, as torchrun does, or neither")
        for name, value in given.items():
            if value is not None and not value.isdecimal():
                raise ValueError(f"{name} is {value!r}: it must be a whole number, as torchrun sets it")
        rank = int(given["RANK"] or 0)
        return cls(rank, int(given["WORLD_SIZE"] or 1), int(given["LOCAL_RANK"] or rank))

    def owns(self, shard: int) -> bool:
        """Tell whether this process does a shard. Shards are dealt out in turn.

        Args:
            shard: number of the shard, from 0.

        Returns:
            True if `shard` % `world` is `rank`.
        """
        return shard % self.world == self.rank

    def device(self, name: str) -> str:
        """Choose the device of this process.

        Args:
            name: "auto", or the name of a device.

        Returns:
            `name`; with several processes, "auto" and "cuda" become this process's own CUDA device where there is one.
        """
        if self.world == 1 or name not in ("auto", "cuda"):
            return name
        import torch

        count = torch.cuda.device_count()
        return f"cuda:{self.local % count}" if count else name
