"""The page as an application. It asks nothing of other hosts: no analytics, no fonts or scripts from elsewhere."""

from collections.abc import Mapping
from functools import partial

import gradio as gr
from fastapi import FastAPI

from mmspec.serving.ui.models import UiModel
from mmspec.serving.ui.page import build_page
from mmspec.serving.ui.rendering import style


def create_ui(models: Mapping[str, UiModel], seed: int = 0, draft_length: str = "4") -> FastAPI:
    """Return the application of the page.

    Args:
        models: what `load_ui_models` returned.
        seed: the seed that the forms begin with.
        draft_length: the draft length that the forms begin with.
    """
    theme = gr.themes.Base(
        primary_hue="indigo",
        neutral_hue="slate",
        radius_size="md",
        font=("system-ui", "sans-serif"),
        font_mono=("ui-monospace", "monospace"),
    )
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.stop = partial(_close, models)
    return gr.mount_gradio_app(
        app,
        build_page(models, seed, draft_length),
        path="/",
        footer_links=[],
        run_history=False,
        enable_monitoring=False,
        mcp_server=False,
        ssr_mode=False,
        pwa=False,
        max_file_size=1,  # nothing is uploaded
        theme=theme,
        css=style(),
    )


def _close(models: Mapping[str, UiModel]) -> None:
    """Cancel all generations, and end the models' threads."""
    for model in models.values():
        model.served.close()
