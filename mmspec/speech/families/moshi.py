"""Moshi (Defossez et al. 2024): refused, and why.

Its frames would fit (`core.distributions.depth_frame`: a text id, then K codes by the depth decoder). But it is a partner in a
conversation: the step after a frame hears what the other side said meanwhile, so frames that are drafted ahead are judged by sound that is
not there yet. The class's own generation feeds it silence, which no conversation is.
"""

REASON = (
    "at every step it hears the other side while it speaks, and frames drafted ahead would need what has not been said yet; "
    "use its own generate, which answers silence"
)
