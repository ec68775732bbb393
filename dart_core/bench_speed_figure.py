"""A speed run's record as a picture: bars with their intervals, a small SVG by hand."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from dart_core.errors import ArenaError
from dart_core.names import model_name

WIDTH, NAMES, ROW, TOP, BOTTOM = 760, 250, 26, 58, 34
COLOURS = {"dart": "#0072b2", "eagle3": "#d55e00", "ar": "#009e73", None: "#7f7f7f"}


def speed_figure(record: Mapping[str, Any]) -> str:
    """Mean decoding speed of every contestant, as times that of transformers' ``generate`` (of our
    plain decoding where that did not run), with the speed beside it, as an SVG document.

    Raises ArenaError for a record without speeds.
    """
    found = {
        name: each for name, each in record["contestants"].items() if each["times_base"]["value"]
    }
    if not found:
        raise ArenaError("there is no figure to draw: no prompt was run to its end")
    spans = {name: _span(each["times_base"]) for name, each in found.items()}
    longest = max(high for _, _, high in spans.values())
    height = TOP + ROW * len(found) + BOTTOM
    scale = (WIDTH - NAMES - 130) / longest

    sets = ", ".join(record["sets"])
    title = f"Decoding speed, {record['contestants'][record['base']]['what']} = 1"
    under = f"{model_name(record['target'])}, {record['dtype']}, {record['device_name']}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13" role="img" '
        f'aria-label="{html.escape(title)}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="12" y="22" font-size="15" font-weight="bold">{html.escape(title)}</text>',
        f'<text x="12" y="42" fill="#555">{html.escape(_cut(under))}</text>',
    ]
    step = 1 if longest < 8 else 2
    for tick in range(0, int(longest) + 1, step):
        x = NAMES + tick * scale
        parts.append(f'<path d="M{x:.1f},{TOP}V{height - BOTTOM}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{height - BOTTOM + 16}" text-anchor="middle" fill="#555">'
            f"{tick}</text>"
        )
    for place, (name, each) in enumerate(found.items()):
        low, middle, high = spans[name]
        y = TOP + ROW * place
        colour = COLOURS.get(each["engine"], "#7f7f7f")
        speed = each["tokens_per_second"]["value"]
        parts += [
            f'<text x="{NAMES - 8}" y="{y + 17}" text-anchor="end">'
            f"{html.escape(_short(each['what']))}</text>",
            f'<rect x="{NAMES}" y="{y + 4}" width="{middle * scale:.1f}" height="{ROW - 8}" '
            f'fill="{colour}"><title>{html.escape(name)}</title></rect>',
            f'<path d="M{NAMES + low * scale:.1f},{y + ROW / 2}H{NAMES + high * scale:.1f}" '
            'stroke="#000"/>',
            f'<text x="{NAMES + high * scale + 6:.1f}" y="{y + 17}">{middle:.2f} ×, '
            f"{speed:.1f} tok/s</text>",
        ]
    parts.append(
        f'<text x="12" y="{height - 2}" font-size="11" fill="#555">'
        f"{html.escape(_cut(f'mean of {sets}; lines: 95 % intervals over prompts', 120))}</text>"
    )
    return "\n".join([*parts, "</svg>\n"])


def _span(figure: Mapping[str, Any]) -> tuple[float, float, float]:
    low, high = figure["interval"] or (figure["value"], figure["value"])
    return low, figure["value"], high


def _short(what: str) -> str:
    return what.replace("prompt_lookup_num_tokens=10", "lookup").replace("tree budget ", "tree ")


def _cut(text: str, length: int = 100) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
