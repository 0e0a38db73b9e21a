"""A training that is stopped at a turn, as by a kill."""


class Stop:
    """Raises KeyboardInterrupt at a turn. It is an object with a method, of which a checkpoint does not tell.

    Args:
        turn: the turn, or None for none.
    """

    def __init__(self, turn: int | None):
        self.turn = turn

    def check(self, turn: int) -> None:
        if self.turn is not None and turn >= self.turn:
            raise KeyboardInterrupt
