"""The page of `mmspec ui`: plain and speculative decoding side by side. Only `page` and `app` import Gradio."""
