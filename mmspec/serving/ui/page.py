"""The page, in Gradio: a tab for each kind of model, with its form and its panes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gradio as gr

from mmspec.serving.ui.images import WINDOWS, ImageSide
from mmspec.serving.ui.models import UiModel
from mmspec.serving.ui.recommendations import DRAWING, RecommendationSide
from mmspec.serving.ui.rendering import TIMES
from mmspec.serving.ui.runs import Runs
from mmspec.serving.ui.settings import LENGTHS
from mmspec.serving.ui.speech import ACCEPT as SPEECH_ACCEPT
from mmspec.serving.ui.speech import SpeechSide
from mmspec.serving.ui.text import ACCEPT as TEXT_ACCEPT
from mmspec.serving.ui.text import TextSide

_HEAD = """<header class="mm-head"><h1>mmspec</h1><p>Plain decoding and speculative decoding of one request, side by side on one model.
Their rounds run in turns, so that the seconds of each are its own.</p></header>"""
_HINT = '<p class="mm-note">Run decodes the request twice with one seed: plainly, and with a drafter.</p>'
_LABEL = 60  # characters of an example's label


def build_page(models: Mapping[str, UiModel], seed: int = 0, draft_length: str = "4") -> gr.Blocks:
    """Build the page.

    Args:
        models: what `load_ui_models` returned.
        seed: the seed that the forms begin with.
        draft_length: the draft length that the forms begin with.

    Returns:
        The page, to be mounted.
    """
    runs = Runs()
    with gr.Blocks(title="mmspec", analytics_enabled=False, fill_width=True) as page:
        gr.HTML(_HEAD)
        with gr.Tabs():
            for kind, model in models.items():
                title, build = _TABS[kind]
                with gr.Tab(title, id=kind, elem_id=f"mm-{kind}"):
                    build(_Form(kind, runs, seed, draft_length), model)
    page.queue(default_concurrency_limit=None)  # runs of a model wait in its own queue
    return page


class _Form:
    """What all tabs share: fields, buttons and the panes."""

    def __init__(self, kind: str, runs: Runs, seed: int, length: str):
        self.kind, self.runs, self.first_seed, self.first_length = kind, runs, seed, length

    def run(self, side: Any, prompt: Any, settings: Sequence[Any], buttons: tuple[gr.Button, gr.Button]) -> None:
        """Add status and panes, and connect the buttons."""
        status = gr.HTML(_HINT, elem_classes="mm-status")
        panes = gr.HTML(elem_id=f"mm-panes-{self.kind}")
        runs, kind = self.runs, self.kind

        async def play(request: gr.Request, *values: Any) -> Any:
            async for frame in runs.play(str(request.session_hash), kind, side, *values):
                yield frame

        def stop(request: gr.Request) -> None:
            runs.stop(str(request.session_hash), kind)

        begin, end = buttons
        hidden: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        gr.on([begin.click, prompt.submit], play, [prompt, *settings], [status, panes], **hidden)
        end.click(stop, None, None, queue=False, **hidden)

    def buttons(self) -> tuple[gr.Button, gr.Button]:
        """Run and Stop."""
        with gr.Row(elem_classes="mm-buttons"):
            begin = gr.Button("Run", variant="primary", scale=3, min_width=100, elem_id=f"mm-run-{self.kind}")
            return begin, gr.Button("Stop", scale=1, min_width=80, elem_id=f"mm-stop-{self.kind}")

    def seed(self) -> gr.Number:
        return gr.Number(self.first_seed, label="Seed", precision=0, min_width=90)

    def slow(self) -> gr.Dropdown:
        return gr.Dropdown(
            [("off", 1), *((f"{each} {TIMES}", each) for each in (2, 5, 10, 20, 50))], value=1, label="Slow motion", min_width=110
        )

    def length(self, label: str = "Draft length") -> gr.Dropdown:
        choices = list(dict.fromkeys((*LENGTHS, self.first_length)))
        return gr.Dropdown(choices, value=self.first_length, label=label, allow_custom_value=True, min_width=110)


def _choice(choices: Sequence[str], label: str) -> gr.Dropdown:
    return gr.Dropdown(list(choices), value=choices[0], label=label, min_width=130)


def _temperature(value: float, label: str = "Temperature") -> gr.Slider:
    return gr.Slider(0, 2, value, step=0.05, label=label, min_width=140)


def _top_p(value: float) -> gr.Slider:
    return gr.Slider(0.05, 1, value, step=0.05, label="Top-p", min_width=140)


def _examples(examples: Sequence[Any], fields: Sequence[Any], label: str = "Examples") -> None:
    if not examples:
        return
    rows = [each if isinstance(each, list) else [each] for each in examples]
    labels = [_short(", ".join(map(str, row))) for row in rows]
    gr.Examples(rows, list(fields), example_labels=labels, label=label, examples_per_page=4, api_visibility="private")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LABEL else f"{line[: _LABEL - 1]}…"


def _text(form: _Form, model: UiModel) -> None:
    side = TextSide(model)
    examples = side.examples
    with gr.Row():
        with gr.Column(scale=3, min_width=300):
            prompt = gr.Textbox(examples[0] if examples else "", label="Prompt", lines=4, max_lines=12)
            _examples(examples, [prompt])
            buttons = form.buttons()
        with gr.Column(scale=2, min_width=300):
            with gr.Row():
                drafter, accept, length = _choice(side.drafters, "Drafter"), _choice(TEXT_ACCEPT, "Accept rule"), form.length()
            with gr.Row():
                temperature, top_p = _temperature(0), _top_p(1)
            with gr.Row():
                most, seed, slow = gr.Number(64, label="New tokens", precision=0, min_width=90), form.seed(), form.slow()
            chat = gr.Checkbox(False, label="Chat template", visible=side.chats)
    form.run(side, prompt, [drafter, accept, length, temperature, top_p, most, seed, slow, chat], buttons)


def _image(form: _Form, model: UiModel) -> None:
    side = ImageSide(model)
    examples = side.examples
    guidance = side.loaded.guidance or 1.0
    with gr.Row():
        with gr.Column(scale=3, min_width=300):
            prompt = gr.Textbox(examples[0] if examples else "", label="Prompt", lines=2, visible=side.loaded.prompted)
            _examples(examples[:8], [prompt])
            buttons = form.buttons()
        with gr.Column(scale=2, min_width=300):
            with gr.Row():
                method = _choice(side.methods, "Method")
                window = gr.Dropdown(list(WINDOWS), value="default", label="Window", allow_custom_value=True, min_width=110)
            with gr.Row():
                temperature, top_p = _temperature(1), _top_p(1 if side.continuous else 0.8)
            with gr.Row():
                scale = gr.Number(guidance, label="Guidance", minimum=1, step=0.5, min_width=90)
                seed, slow = form.seed(), form.slow()
    form.run(side, prompt, [method, window, scale, temperature, top_p, seed, slow], buttons)


def _speech(form: _Form, model: UiModel) -> None:
    side = SpeechSide(model)
    examples, voices = side.examples, side.voices
    first = examples[0] if examples else ["", *voices[:1]]
    with gr.Row():
        with gr.Column(scale=3, min_width=300):
            text = gr.Textbox(first[0], label="Text", lines=2)
            voice = gr.Dropdown(list(voices), value=first[1] if voices else None, label="Voice", visible=bool(voices))
            _examples(examples, [text, voice] if voices else [text])
            buttons = form.buttons()
        with gr.Column(scale=2, min_width=300):
            with gr.Row():
                drafter, accept, length = _choice(side.drafters, "Drafter"), _choice(SPEECH_ACCEPT, "Accept rule"), form.length()
            temperature = _temperature(side.temperature)
            with gr.Row():
                most, seed, slow = gr.Number(10, label="Most seconds", min_width=90), form.seed(), form.slow()
    form.run(side, text, [voice, drafter, accept, length, temperature, most, seed, slow], buttons)


def _recommendations(form: _Form, model: UiModel) -> None:
    side = RecommendationSide(model)
    examples = side.examples
    form.first_length = "auto"  # levels of a path
    with gr.Row():
        with gr.Column(scale=3, min_width=300):
            history = gr.Textbox(examples[0] if examples else "", label="History", info="items, oldest first, separated by commas", lines=2)
            _examples(examples, [history])
            buttons = form.buttons()
        with gr.Column(scale=2, min_width=300):
            with gr.Row():
                method, drafter, length = _choice(DRAWING, "Method"), _choice(side.drafters, "Drafter"), form.length("Levels a round")
            temperature = _temperature(1, "Temperature, for methods that draw")
            with gr.Row():
                count, seed, slow = gr.Number(10, label="Items", precision=0, min_width=90), form.seed(), form.slow()
            unseen = gr.Checkbox(False, label="Leave out the items of the history")
    form.run(side, history, [method, drafter, length, count, temperature, seed, unseen, slow], buttons)


_TABS: dict[str, tuple[str, Callable[[_Form, UiModel], None]]] = {
    "text": ("Text", _text),
    "image": ("Image", _image),
    "speech": ("Speech", _speech),
    "recommender": ("Recommendations", _recommendations),
}
