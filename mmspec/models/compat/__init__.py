"""Every use of transformers' internals: private methods, frames, replaced classes, and undocumented names.

Each function states what it relies on and since which release; `tests/core/test_compat.py` tests each assumption and fails when a new
release of transformers breaks it. No other module of mmspec uses anything below transformers' documented interface.
"""

from mmspec.models.compat.compiler import many_shapes, with_whole_cache
from mmspec.models.compat.generation import (
    GenerateCall,
    copied,
    encoder_source,
    frame_of,
    generate_call,
    generation_defaults,
    inputs_replaced,
    keep_tokenizer,
    plain_sample,
    prefix_function,
    weighs_timestamps,
    whisper_opening,
)
from mmspec.models.compat.gguf import forget_gguf, gguf_options, progress_as_set
from mmspec.models.compat.models import (
    ask_attention,
    attention_of,
    bring_weights,
    config_path,
    eager_configs,
    has_weights,
    hooks_of,
    is_block_assistant,
    is_stateful,
    norms_embeddings,
    per_layer_inputs,
)
from mmspec.models.compat.positions import (
    mask_makers,
    recomputes_at_rope_switch,
    relative_buckets,
    rope_at_length,
    rope_deltas_kept,
    rope_types,
    ropes_by_length,
    takes_argument,
    with_bias_table,
)
from mmspec.models.compat.speech import (
    csm_embeddings,
    encodec_frame,
    is_vibevoice,
    pocket_placeholders,
    vibevoice_scheduler,
    whisper_window_changes,
)
from mmspec.models.compat.video import sampled_frames

__all__ = [
    "GenerateCall",
    "ask_attention",
    "attention_of",
    "bring_weights",
    "config_path",
    "copied",
    "csm_embeddings",
    "eager_configs",
    "encodec_frame",
    "encoder_source",
    "forget_gguf",
    "frame_of",
    "generate_call",
    "generation_defaults",
    "gguf_options",
    "has_weights",
    "hooks_of",
    "inputs_replaced",
    "is_block_assistant",
    "is_stateful",
    "is_vibevoice",
    "keep_tokenizer",
    "many_shapes",
    "mask_makers",
    "norms_embeddings",
    "per_layer_inputs",
    "plain_sample",
    "pocket_placeholders",
    "prefix_function",
    "progress_as_set",
    "recomputes_at_rope_switch",
    "relative_buckets",
    "rope_at_length",
    "rope_deltas_kept",
    "rope_types",
    "ropes_by_length",
    "sampled_frames",
    "takes_argument",
    "vibevoice_scheduler",
    "weighs_timestamps",
    "whisper_opening",
    "whisper_window_changes",
    "with_bias_table",
    "with_whole_cache",
]
