"""Video processors: the frames they sample from a clip."""

from typing import Any


def sampled_frames(video_processor: Any, metadata: Any) -> list[int]:
    """The numbers of the frames that `video_processor` takes of a clip with this `VideoMetadata`; all where it does not sample.

    Relies on `BaseVideoProcessor.preprocess` calling `sample_frames(metadata=, **settings)` where `do_sample_frames` is set, with the
    processor's own value of every name in `valid_kwargs` but the five left out here (5.17 to 5.24).
    """
    if not video_processor.do_sample_frames:
        return list(range(metadata.total_num_frames))
    apart = ("input_data_format", "do_convert_rgb", "do_sample_frames", "device", "video_metadata")
    settings = {name: getattr(video_processor, name, None) for name in video_processor.valid_kwargs.__annotations__ if name not in apart}
    return [int(index) for index in video_processor.sample_frames(metadata=metadata, **settings)]
