"""Plots as inline SVG and HTML: they need no other file and take the page's own colours, light or dark."""

from collections.abc import Mapping, Sequence
from html import escape

COLOURS = 8  # --c0 .. --c7 of the page's style
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 460, 250, 44, 12, 40


def lines(series: Mapping[str, Sequence[tuple[int, int]]], below: str) -> str:
    """Shares by position, one line per name; a point is (how many, of how many)."""
    longest = max((len(points) for points in series.values()), default=1)
    step = (_WIDTH - _LEFT - 20) / max(1, longest - 1)
    inner = _HEIGHT - _TOP - _BOTTOM

    def at(index: int, value: float) -> tuple[float, float]:
        return _LEFT + 8 + index * step, _TOP + inner * (1 - value)

    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = at(0, share)[1]
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    for index in range(longest):
        parts.append(f'<text class="tick" x="{at(index, 0)[0]:.1f}" y="{_HEIGHT - 20}" text-anchor="middle">{index + 1}</text>')
    parts.append(f'<text class="tick" x="{(_LEFT + _WIDTH) / 2}" y="{_HEIGHT - 3}" text-anchor="middle">{escape(below)}</text>')
    for number, (name, counts) in enumerate(series.items()):
        points = [at(index, hit / tried) for index, (hit, tried) in enumerate(counts)]
        colour = f"var(--c{number % COLOURS})"
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5" stroke-linejoin="round"/>')
        for index, ((x, y), (hit, tried)) in enumerate(zip(points, counts, strict=True)):
            tip = f"{escape(name)}, position {index + 1}: {hit} of {tried} ({hit / tried:.0%})"
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"><title>{tip}</title></circle>')
    svg = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(below)}">{"".join(parts)}</svg>'
    return svg + legend(list(series))


def legend(names: Sequence[str]) -> str:
    keys = (f'<span><i style="background:var(--c{n % COLOURS})"></i>{escape(name)}</span>' for n, name in enumerate(names))
    return f'<p class="legend">{"".join(keys)}</p>'


def split(rows: Mapping[str, Mapping[str, float]], phases: Sequence[str]) -> str:
    """Seconds by phase, one bar per name, all on one scale."""
    longest = max((sum(row.get(phase, 0) for phase in phases) for row in rows.values()), default=0) or 1
    parts = []
    for name, row in rows.items():
        cells = []
        for number, phase in enumerate(phases):
            spent = row.get(phase, 0)
            tip = f"{phase}: {spent:.2f} s"
            cells.append(f'<i style="width:{spent / longest:.2%};background:var(--c{number % COLOURS})" title="{tip}"></i>')
        total = sum(row.get(phase, 0) for phase in phases)
        parts.append(
            f'<span class="name">{escape(name)}</span><span class="bar">{"".join(cells)}</span><span class="num">{total:.2f} s</span>'
        )
    return f'<div class="bars">{"".join(parts)}</div>{legend(phases)}'


def ratios(rows: Sequence[tuple[str, float, float, float]]) -> str:
    """Medians with quartiles as bars from 0; the mark at 1 is the baseline's speed."""
    longest = max([1.0, *(high for _, _, _, high in rows)]) * 1.05
    parts = []
    for name, median, low, high in rows:
        whisker = f'<b style="left:{low / longest:.2%};width:{(high - low) / longest:.2%}"></b>'
        bar = f'<i style="width:{median / longest:.2%};background:var(--c0)"></i>{whisker}<u style="left:{1 / longest:.2%}"></u>'
        parts.append(
            f'<span class="name">{escape(name)}</span><span class="bar ratio">{bar}</span><span class="num">{median:.2f}&times;</span>'
        )
    return f'<div class="bars">{"".join(parts)}</div>'
