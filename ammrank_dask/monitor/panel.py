"""What all charts of the page have in common: how they look, and that they send only what changed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from bokeh.models import ColumnDataSource, FixedTicker
from bokeh.models.annotations import Title
from bokeh.plotting import figure

BLUE, PALE, ORANGE, GREY, RED, INK = "#3f76b0", "#e3e6ea", "#e8912d", "#b9c0ca", "#c8372d", "#333c47"


class Panel(ABC):
    """A figure and what it shows now: every change of a property is a message to the browser."""

    def __init__(self, name: str, title: str, **options: Any) -> None:
        self._shown: dict[tuple[str, str], Any] = {}
        self.figure = plot = figure(
            name=name,
            title=Title(text=title, text_color=INK, text_font_size="13px"),
            toolbar_location=None,
            tools="",
            sizing_mode="stretch_both",
            min_border=4,
            **options,
        )
        plot.outline_line_color = None
        plot.grid.grid_line_color = "#eef0f3"
        plot.axis.axis_line_color = GREY
        plot.axis.major_tick_line_color = GREY
        plot.axis.minor_tick_line_color = None
        plot.axis.major_label_text_font_size = "11px"
        plot.axis.major_label_text_color = INK
        plot.axis.axis_label_text_font_size = "11px"
        plot.axis.axis_label_text_font_style = "normal"

    def set(self, model: Any, **properties: Any) -> None:
        """Set those properties of a model that differ from what was set last."""
        for name, value in properties.items():
            if self._shown.get((model.id, name), self) != value:
                self._shown[model.id, name] = value
                setattr(model, name, value)

    def label(self, axis: Any, places: Sequence[float], names: Sequence[str]) -> None:
        """Write names at places of an axis; names need not differ from each other."""
        labels = dict(zip(places, names, strict=True))
        if self._shown.get((axis.id, "labels")) != labels:
            self._shown[axis.id, "labels"] = labels
            axis.ticker = FixedTicker(ticks=list(places))
            axis.major_label_overrides = labels

    @abstractmethod
    def update(self, snapshot: dict[str, Any]) -> None:
        """Show a snapshot."""


def empty_source(*columns: str) -> ColumnDataSource:
    """Return a source without rows."""
    return ColumnDataSource({column: [] for column in columns})
