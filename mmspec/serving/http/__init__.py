"""The HTTP server of `mmspec serve`: text through `mmspec.Engine`, other modalities through one worker thread a model.

Shapes of requests, responses and errors are those of the OpenAI API. Needs `pip install mmspec[serve]`.
"""
