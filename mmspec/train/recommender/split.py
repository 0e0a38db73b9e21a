"""What a recommender is measured on, and which users its drafters may learn from."""

from collections.abc import Sequence
from dataclasses import replace

from mmspec.recsys.catalogue import Item
from mmspec.recsys.histories import Data
from mmspec.train.held_out import HeldOut


def last_items(data: Data) -> HeldOut:
    """Return the `held` histories: of other users than the training ones, or of the same with a last item that these lack."""
    return HeldOut(tuple(range(len(data.past))), tuple(range(len(data.held))), frozenset(tuple(items) for items in data.held))


def of_other_users(data: Data, held: int, test: int) -> Data:
    """Return data whose training histories are of none of the users that a drafter is measured on.

    A target is measured on last items that its training leaves out. A drafter is measured on whole prompts, and the training history of a
    user is the prompt of that user's validation.

    Args:
        data: histories, of which last items or users are left out.
        held: number of `held` histories that are measured on.
        test: number of `test` histories.

    Returns:
        `data` with `held` and `test` cut to these; another user takes the place of one who is measured on.

    Raises:
        ValueError: if no other user is found.
    """
    measured = [*(tuple(items[:-1]) for items in data.held[:held]), *(tuple(items[:-1]) for items in data.test[:test])]
    begun = {*measured, *(prompt[:-1] for prompt in measured)}
    drawn = data.users(0, 4 * len(measured) + 64)
    others = [items for items in drawn if tuple(items) not in begun]
    if not others:
        raise ValueError(f"all of {len(drawn)} training users are among the {len(measured)} that are measured on: measure on fewer")

    def users(first: int, end: int) -> list[Sequence[Item]]:
        return [
            others[number % len(others)] if tuple(items) in begun else items for number, items in enumerate(data.users(first, end), first)
        ]

    return replace(data, users=users, held=data.held[:held], test=data.test[:test])
