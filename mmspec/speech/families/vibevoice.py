"""VibeVoice (Microsoft 2025): refused, and why.

Its latents could be judged as Pocket TTS's are. But before the next step each one is made sound and heard again: a streaming decoder and a
streaming encoder, and beside the prompt a second stream of the language model for guidance that begins anew with every speaker's turn. The
class keeps the states of these for a batch as a whole, and none of them can be taken back for a row whose drafted frame was rejected.
"""

REASON = (
    "every frame is made sound and heard again before the next one, by streaming nets whose states cannot be taken back after a rejected "
    "frame; use its own generate"
)
