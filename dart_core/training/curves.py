"""The curves of a training run as one small HTML file, drawn as SVG: it opens anywhere, offline."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from pathlib import Path

from dart_core.disk import written_whole

POINTS = 400  # of a curve, at most
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 420, 240, 46, 28, 24
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#b22222")
Curve = tuple[str, list[tuple[float, float]]]  # name, points


def write_curves(lines: Sequence[dict], path: Path, title: str) -> None:
    """Draw the lines of a log.jsonl: loss, hit@k by position, τ by tree budget, learning rate."""
    charts = [("loss", _curves(lines, "loss"))]
    charts += [(f"held-out hit@{k}, by position", _curves(lines, f"hit@{k}")) for k in (1, 5, 10)]
    charts += [("held-out τ, by tree budget", _curves(lines, "tau"))]
    charts += [("loss, by position", _curves(lines, "loss_by_row"))]
    charts += [("learning rate", _curves(lines, "lr"))]
    body = "\n".join(_chart(name, curves) for name, curves in charts if curves)
    with written_whole(path) as partial:
        partial.write_text(
            f"<!doctype html><meta charset=utf-8><title>{html.escape(title)}</title>"
            "<style>body{font:14px sans-serif;color:#222;background:#fff}svg{margin:8px}</style>"
            f"<h1>{html.escape(title)}</h1><p>Horizontal: optimiser steps. The figure behind a "
            f"name is the last one; pointing at a curve names it.</p>\n{body}\n",
            encoding="utf-8",
        )


def _curves(lines: Sequence[dict], key: str) -> list[Curve]:
    """A curve of a plain figure, or one of each entry of a list or an object."""
    found: dict[str, list[tuple[float, float]]] = {}
    for line in lines:
        value = line.get(key, [])
        if isinstance(value, (int, float)):
            value = {"": value}
        elif isinstance(value, list):
            value = {str(place): each for place, each in enumerate(value)}
        for name, each in value.items():
            if each is None:  # nothing was there to be measured
                continue
            found.setdefault(name, []).append((line["step"], each))
    thinned = (
        (name, points[-1 :: -max(1, len(points) // POINTS)]) for name, points in found.items()
    )
    return [(name, points[::-1]) for name, points in thinned]


def _chart(title: str, curves: list[Curve]) -> str:
    points = [point for _, line in curves for point in line]
    right, low = max(x for x, _ in points), min(0.0, min(y for _, y in points))
    high = max(y for _, y in points)
    step = 10 ** math.floor(math.log10(max(high - low, 1e-9)))
    step *= next(m for m in (0.2, 0.5, 1, 2) if (high - low) / (m * step) <= 6)
    high = max(math.ceil(high / step) * step, step)

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + x / max(right, 1) * (WIDTH - LEFT - 90)
        return round(across, 1), round(TOP + (high - y) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)

    parts = [f'<text x="{LEFT}" y="16" font-weight="bold">{html.escape(title)}</text>']
    for tick in range(round((high - low) / step) + 1):
        x, y = at(0, low + tick * step)
        parts.append(f'<path d="M{x},{y}H{at(right, 0)[0]}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{x - 6}" y="{y + 4}" text-anchor="end">{low + tick * step:.3g}</text>'
        )
    for x, anchor in ((0, "start"), (right, "end")):
        where = f'x="{at(x, 0)[0]}" y="{HEIGHT - 6}" text-anchor="{anchor}"'
        parts.append(f"<text {where}>{x:,}</text>")
    for place, (name, line) in enumerate(curves):
        colour = COLOURS[place % len(COLOURS)]
        path = " ".join(f"{x},{y}" for x, y in (at(*point) for point in line))
        label = html.escape(f"{name} {line[-1][1]:.3g}".strip())
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6" '
            f'stroke-linecap="round"><title>{label}</title></polyline>'
        )
        where = f'x="{WIDTH - 82}" y="{TOP + 10 + 16 * place}"'
        parts.append(f'<text {where} fill="{colour}">{label}</text>')
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" font-size="12" role="img" '
        f'aria-label="{html.escape(title)}">{"".join(parts)}</svg>'
    )
