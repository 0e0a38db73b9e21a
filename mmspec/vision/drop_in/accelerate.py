"""`mmspec.vision.accelerate`: a diffusers pipeline, or a Janus model, whose autoregressive stage is decoded by mmspec."""

from typing import Any

from mmspec.run.arguments import public_call
from mmspec.vision.drop_in.janus import CLASS, JanusGenerate
from mmspec.vision.drop_in.speculate import speculate


@public_call
def accelerate(model: Any, **options: Any) -> Any:
    """Decode the autoregressive stage of a `GlmImagePipeline`, or the pictures of a Janus model, speculatively.

    Networks stay as they are. One method is replaced, on this object only: `generate_prior_tokens` of the pipeline, or `generate` of the
    Janus model, whose texts (`generation_mode="text"`) are still the class's own. `del pipeline.generate_prior_tokens` and `del
    model.generate` undo it, and calling `accelerate` again changes the options. Codes are those that the class's own loop would draw, from
    the same distribution; with mmspec's noise, which the pipeline's `generator`, `seed`, or torch's global generator seeds.

    Args:
        model: a `diffusers.GlmImagePipeline` or a `transformers.JanusForConditionalGeneration`.
        options: of `mmspec.vision.speculate`: method, window, seed, report, ...

    Returns:
        The same object.

    Raises:
        ValueError: for other objects, and for invalid options.
    """
    kind = type(model)
    janus = any(base.__name__ == CLASS for base in kind.__mro__)
    if not janus and not (hasattr(kind, "generate_prior_tokens") and hasattr(model, "vision_language_encoder")):
        raise ValueError(f"{kind.__name__} has no autoregressive stage that mmspec knows: give a GlmImagePipeline or a {CLASS}")
    call = speculate(**options)
    if janus:
        if call.stateless:
            raise ValueError("stateless is set: Janus's pictures take no logits processors or stopping criteria, leave it out")
        model.generate = JanusGenerate(model, call.decoding)
        return model
    stage = _Stage(model, call)

    def generate_prior_tokens(*args: Any, **kwargs: Any) -> Any:
        return kind.generate_prior_tokens(stage, *args, **kwargs)

    model.generate_prior_tokens = generate_prior_tokens
    return model


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
