"""The charts: the race over own clocks, accepted tokens by step or clock, running τ and speedup,
acceptance by draft position, and where steps' time goes.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from app.panels.base import panel

PLOTLY = "arena-assets/plotly.min.js"  # relative, so that it is found under any path prefix


def charts_panel(value: dict, **options: Any) -> gr.HTML:
    """Charts for a value of ``view.RunView.charts``."""
    scripts = ("charts-series.js", "charts-figure.js", "charts.js")
    head = f'<script src="{PLOTLY}"></script>'
    return panel(scripts, '<div class="charts"></div>', value, head=head, **options)
