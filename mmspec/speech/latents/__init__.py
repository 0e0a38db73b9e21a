"""Speech models whose steps are continuous latents: Pocket TTS, VibeVoice."""

from mmspec.utils.renamed import old_names

__getattr__ = old_names(__name__)
