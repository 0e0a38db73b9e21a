"""Moshi (Defossez et al. 2024): refused, and why."""

REASON = (
    "it listens while it speaks, and its class writes only against silence and keeps the frames it wrote in the model itself; "
    "use its own generate"
)
