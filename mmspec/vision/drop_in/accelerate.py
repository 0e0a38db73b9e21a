"""`mmspec.vision.accelerate`: a diffusers pipeline whose autoregressive stage is decoded by mmspec."""

from typing import Any

from mmspec.vision.drop_in.speculate import speculate


def accelerate(pipeline: Any, **options: Any) -> Any:
    """Decode the autoregressive stage of a diffusers pipeline speculatively: `GlmImagePipeline`.

    The pipeline's models stay as they are; only its `generate_prior_tokens` is replaced, on this object. `del
    pipeline.generate_prior_tokens` undoes it, and calling `accelerate` again changes the options. Codes are those that the pipeline's own
    `generate` would draw, from the same distribution; with mmspec's noise, which the pipeline's `generator` seeds.

    Args:
        pipeline: a `diffusers.GlmImagePipeline`.
        options: of `mmspec.vision.speculate`: method, window, seed, report, ...

    Returns:
        The same pipeline.

    Raises:
        ValueError: for other pipelines, and for invalid options.
    """
    kind = type(pipeline)
    if not hasattr(kind, "generate_prior_tokens") or not hasattr(pipeline, "vision_language_encoder"):
        raise ValueError(f"{kind.__name__} has no autoregressive stage that mmspec knows: give a GlmImagePipeline")
    stage = _Stage(pipeline, speculate(**options))

    def generate_prior_tokens(*args: Any, **kwargs: Any) -> Any:
        return kind.generate_prior_tokens(stage, *args, **kwargs)

    pipeline.generate_prior_tokens = generate_prior_tokens
    return pipeline


class _Encoder:
    """A transformers model whose `generate` decodes by a function of one's own; in all else the model."""

    def __init__(self, model: Any, custom_generate: Any):
        self.model, self.custom_generate = model, custom_generate

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        return self.model.generate(*args, custom_generate=self.custom_generate, **kwargs)


class _Stage:
    """A pipeline as its autoregressive stage sees it."""

    def __init__(self, pipeline: Any, custom_generate: Any):
        self.pipeline, self.custom_generate = pipeline, custom_generate

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pipeline, name)

    @property
    def vision_language_encoder(self) -> _Encoder:
        """The pipeline's model of today, so that one that is put in its place is used."""
        return _Encoder(self.pipeline.vision_language_encoder, self.custom_generate)
