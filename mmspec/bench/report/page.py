"""A page that needs nothing but itself: style, plots and text in one HTML file, light or dark, on any width."""

from collections.abc import Sequence
from html import escape
from typing import Any

from mmspec.utils.provenance import machine

_STYLE = """
:root { color-scheme: light dark; --bg:#f7f8fa; --card:#fff; --ink:#1c2430; --soft:#5b6675; --line:#dfe4ea; --good:#0f7b54;
 --bad:#b3261e; --goodbg:#dff3ea; --badbg:#fbe2e0; --hit:#cfeadf; --hit2:#b9e0d0; --own:#fde7c4; --own2:#f9d9a4; --ring:#2b6cb0;
 --c0:#2b6cb0; --c1:#d97706; --c2:#0f8f68; --c3:#b0418c; --c4:#6b5bd2; --c5:#b8860b; --c6:#2a9d9d; --c7:#8a94a3 }
@media (prefers-color-scheme: dark) { :root { --bg:#12161c; --card:#1a2029; --ink:#e6eaf0; --soft:#9aa6b5; --line:#2c3541;
 --good:#5fd3a5; --bad:#ff8f86; --goodbg:#123528; --badbg:#46201d; --hit:#17463a; --hit2:#1f5a4a; --own:#553c12; --own2:#6a4c18;
 --ring:#7ab3f0; --c0:#63a4e8; --c1:#f0a03c; --c2:#43c795; --c3:#e07fc0; --c4:#a79af5; --c5:#d9b84a; --c6:#5fd0d0; --c7:#8a94a3 } }
* { box-sizing:border-box }
body { margin:0; background:var(--bg); color:var(--ink); font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif }
main { max-width:1080px; margin:0 auto; padding:2.2rem 1.2rem 3rem }
h1 { font-size:1.9rem; line-height:1.2; margin:0 0 .3rem; letter-spacing:-.01em } h2 { font-size:1.3rem; margin:2.4rem 0 .4rem }
h3 { font-size:1rem; margin:1.4rem 0 .5rem } p { margin:.35rem 0 } .soft,.note { color:var(--soft) } .note { font-size:.86rem }
.cards { display:grid; grid-template-columns:repeat(auto-fit,minmax(210px,1fr)); gap:.9rem; margin:1.3rem 0 }
.card { background:var(--card); border:1px solid var(--line); border-radius:12px; padding:1rem 1.1rem }
.card b { display:block; font-size:1.75rem; line-height:1.2; letter-spacing:-.02em } .card span { color:var(--soft); font-size:.88rem }
.panel + .two { margin-top:1rem } .note + .two { margin-top:1rem }
.panel { background:var(--card); border:1px solid var(--line); border-radius:12px; padding:1rem 1.1rem; margin:.8rem 0; overflow-x:auto
 }
.two { display:grid; grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr)); gap:.9rem } .two .panel { margin:0 }
table { border-collapse:collapse; width:100%; font-size:.92rem } th { text-align:left; color:var(--soft); font-weight:600 }
th,td { padding:.42rem .6rem; border-bottom:1px solid var(--line); vertical-align:top } tr:last-child td { border-bottom:0 }
td.num,th.num { text-align:right; font-variant-numeric:tabular-nums } td.num { white-space:nowrap } th { vertical-align:bottom }
td:first-child { min-width:13rem } th.group { text-align:center; font-weight:400; font-size:.82rem }
td small { display:block; color:var(--soft) }
.badge { display:inline-block; border-radius:99px; padding:.05rem .6rem; font-size:.85rem; font-weight:600; white-space:nowrap }
.yes { background:var(--goodbg); color:var(--good) } .no { background:var(--badbg); color:var(--bad) }
h3:first-child { margin-top:.2rem } svg { width:100%; height:auto; display:block } .grid { stroke:var(--line) }
.tick { fill:var(--soft); font-size:12px }
.legend { display:flex; flex-wrap:wrap; gap:.2rem 1rem; font-size:.85rem; color:var(--soft); margin-top:.6rem }
.legend i { display:inline-block; width:.8em; height:.8em; border-radius:3px; margin-right:.4em; vertical-align:-.05em }
.bars { display:grid; grid-template-columns:max-content 1fr max-content; gap:.5rem .8rem; align-items:center; font-size:.9rem }
.bar { display:flex; height:1.05rem; background:var(--bg); border-radius:5px; overflow:hidden; position:relative }
.bar i { display:block } .ratio b { position:absolute; top:46%; height:2px; background:var(--ink) }
.ratio u { position:absolute; top:0; bottom:0; border-left:2px dashed var(--ink); opacity:.6 }
.bars .num { font-variant-numeric:tabular-nums; color:var(--soft) }
details { background:var(--card); border:1px solid var(--line); border-radius:12px; margin:.8rem 0; padding:.2rem 1.1rem }
summary { cursor:pointer; padding:.7rem 0; font-weight:600 } details[open] summary { border-bottom:1px solid var(--line) }
.prompt { color:var(--soft); white-space:pre-wrap; font-size:.92rem; margin:.8rem 0 } .tabs { margin:.8rem 0 1rem }
.tabs > input { position:absolute; opacity:0 }
.tabs > label { display:inline-block; padding:.2rem .75rem; margin:0 .3rem .5rem 0; cursor:pointer; border:1px solid var(--line);
 border-radius:99px; font-size:.88rem }
.tabs > input:checked + label { border-color:var(--ring); color:var(--ring); font-weight:600 }
.tabs > input:focus-visible + label { outline:2px solid var(--ring) } .tabs > .pane { display:none }
.text { white-space:pre-wrap; overflow-wrap:anywhere; line-height:1.85 }
.cols { display:grid; grid-template-columns:1fr 1fr; gap:1.2rem } .cols h4 .note { font-weight:400; margin:0 .7em }
.cols h4 { margin:0 0 .4rem; font-size:.88rem; color:var(--soft); font-weight:600 } .r { border-radius:4px }
.r:hover { outline:2px solid var(--ring); outline-offset:1px } .h { background:var(--hit) } .o { background:var(--own) }
.h,.o { border-radius:3px; padding:.08em 0 } .r:nth-child(even) .h { background:var(--hit2) }
.r:nth-child(even) .o { background:var(--own2) } .diff { background:var(--badbg); color:var(--bad) }
footer { margin-top:2.6rem; border-top:1px solid var(--line); padding-top:1rem }
.tabs > input:nth-of-type(1):checked ~ div:nth-of-type(1), .tabs > input:nth-of-type(2):checked ~ div:nth-of-type(2), .tabs >
 input:nth-of-type(3):checked ~ div:nth-of-type(3), .tabs > input:nth-of-type(4):checked ~ div:nth-of-type(4), .tabs >
 input:nth-of-type(5):checked ~ div:nth-of-type(5), .tabs > input:nth-of-type(6):checked ~ div:nth-of-type(6) { display:block }
.pics th,.pics td { text-align:center; border:0; padding:.3rem; min-width:0; font-size:.82rem } .pics tbody th { text-align:left }
.pics img { width:96px; image-rendering:pixelated; border-radius:6px; border:1px solid var(--line); display:block; margin:0 auto .15rem }
.pics tbody th { vertical-align:middle; min-width:5rem } .same { color:var(--good) } .legend .ramp { width:9rem; border-radius:4px }
code { font:.9em ui-monospace,SFMono-Regular,Menlo,monospace; overflow-wrap:anywhere }
@media (max-width:720px) { .cols { grid-template-columns:1fr } }
"""


def page(title: str, lead: str, body: Sequence[str], found: dict[str, Any]) -> str:
    """The whole file. `lead` is one sentence; `found` the provenance, which ends the page."""
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    about = f"{escape(machine(found))} &middot; {escape(found['date'])} &middot; {escape(versions)}"
    commit = f" &middot; commit <code>{escape(found['git'])}</code>" if found["git"] else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{_STYLE}</style></head>
<body><main><h1>{escape(title)}</h1><p class="soft">{escape(lead)}</p>
{"".join(body)}
<footer class="note"><p>{about}{commit}</p><p>Made by <code>{escape(" ".join(found["argv"]))}</code></p></footer>
</main></body></html>
"""


def cards(items: Sequence[tuple[str, str]]) -> str:
    """Headline figures: (figure, what it is)."""
    parts = (f'<div class="card"><b>{figure}</b><span>{words}</span></div>' for figure, words in items)
    return f'<div class="cards">{"".join(parts)}</div>'


def badge(same: bool) -> str:
    """The outcome of a comparison that was made: same text, or not."""
    return f'<span class="badge {"yes" if same else "no"}">same text: {"yes" if same else "no"}</span>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]], groups: str = "", words: int = 1) -> str:
    """Heads and cells are HTML; columns from `words` on are numbers. `groups` is a row above the head."""

    def cell(tag: str, number: int, content: str) -> str:
        return f"<{tag}{' class=num' if number >= words else ''}>{content}</{tag}>"

    top = "".join(cell("th", n, name) for n, name in enumerate(head))
    body = "".join("<tr>" + "".join(cell("td", n, content) for n, content in enumerate(row)) + "</tr>" for row in rows)
    return f'<div class="panel"><table><thead>{groups}<tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def tally(same: int, of: int) -> str:
    """How many of how many, in the colour of kept or broken promises."""
    return f'<span class="badge {"yes" if same == of else "no"}">{same} of {of}</span>'


def way(row: dict[str, Any]) -> tuple[str, str]:
    """The first cells of a way's row: its name over what it does, and its exactness."""
    name = f"{escape(row['way'])}<small>{escape(row['what'])}</small>"
    return name, f'<span style="white-space:nowrap">{escape(row["exactness"])}</span>'


def kept(same: dict[str, int] | None, exactness: str) -> str:
    """How many outputs are plain decoding's: in colour where the way promises them all."""
    if same is None:
        return ""
    return tally(**same) if exactness == "token-exact" else f"{same['same']} of {same['of']}"
