"""Heads whose work on timestep and conditioning is done once for all steps of a token."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

PREPARED = 4096
"""Pairs of a token and a step whose conditioning is prepared at once in plain sampling. Longer work is done in blocks of steps."""


@runtime_checkable
class PreparedHead(Protocol):
    """A head of two parts, of which only the second reads the state.

    What the first part returns is kept for the steps of the tokens under way.
    """

    def embed_times(self, timesteps: Tensor) -> Tensor:
        """Embed timesteps.

        Args:
            timesteps: [T].

        Returns:
            [T, W].
        """
        ...

    def condition(self, times: Tensor, z: Tensor) -> Tensor:
        """Combine timesteps and conditioning.

        Args:
            times: embedded timesteps [..., W].
            z: conditioning [..., D], of the same leading shape up to broadcasting.

        Returns:
            What `denoise` reads, [..., F].
        """
        ...

    def denoise(self, x: Tensor, condition: Tensor) -> Tensor:
        """Predict from states.

        Args:
            x: states [M, d].
            condition: [M, F].

        Returns:
            Outputs [M, d].
        """
        ...


def conditioned(net: Any, timesteps: Tensor, z: Tensor) -> Tensor | None:
    """Run the part of a head that does not read the state, once for every step of every token.

    Args:
        net: the head.
        timesteps: those of the steps, [T].
        z: conditioning [R, D].

    Returns:
        What `denoise` reads [R, T, F]; None for a head that prepares nothing.
    """
    return net.condition(net.embed_times(timesteps), z[:, None]) if isinstance(net, PreparedHead) else None


def outputs_in_turn(net: Any, timesteps: Tensor, z: Tensor) -> Callable[[Tensor, int], Tensor]:
    """Condition a head for plain sampling, where all tokens are at the same step.

    Args:
        net: the head.
        timesteps: those of the steps, [T].
        z: conditioning [R, D].

    Returns:
        A function from states [R, d] and the number of their step to outputs [R, d]. Steps are prepared in blocks, when first asked for.
    """
    if not isinstance(net, PreparedHead):
        times = timesteps[:, None].expand(-1, len(z))
        return lambda x, step: net(x, times[step], z)
    block, found = max(1, PREPARED // max(1, len(z))), {}

    def output(x: Tensor, step: int) -> Tensor:
        begin = step - step % block
        if begin not in found:
            found.clear()
            found[begin] = net.condition(net.embed_times(timesteps[begin : begin + block])[:, None], z).unbind(0)  # [R, F] a step
        return net.denoise(x, found[begin][step - begin])

    return output


def outputs_at_once(net: Any, timesteps: Tensor, z: Tensor, x: Tensor) -> Tensor:
    """Run a head once, at a state of every step of every token.

    Args:
        net: the head.
        timesteps: those of the steps, [T].
        z: conditioning [R, D].
        x: states [R, T, d].

    Returns:
        Outputs [R, T, d].
    """
    ready = conditioned(net, timesteps, z)
    if ready is not None:
        return net.denoise(x.flatten(0, 1), ready.flatten(0, 1)).view(x.shape)
    given = z[:, None].expand(-1, x.shape[1], -1)
    return net(x.flatten(0, 1), timesteps.expand(x.shape[:-1]).reshape(-1), given.reshape(-1, z.shape[-1])).view(x.shape)
