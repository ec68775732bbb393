"""The page's own components: each a function with its script and its style sheet beside it."""

from app.panels.base import STYLE_SHEETS
from app.panels.charts import PLOTLY, charts_panel
from app.panels.status import status_line
from app.panels.tokens import token_panel
from app.panels.toolbar import toolbar
from app.panels.totals import totals_table
from app.panels.tree import tree_view

__all__ = [
    "PLOTLY",
    "STYLE_SHEETS",
    "charts_panel",
    "status_line",
    "token_panel",
    "toolbar",
    "totals_table",
    "tree_view",
]
