"""The charts of the page, each drawn from a snapshot of the night; they send only what changed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from bokeh.models import (
    BasicTicker,
    ColumnDataSource,
    DataRange1d,
    FixedTicker,
    HoverTool,
    NumeralTickFormatter,
    Range1d,
)
from bokeh.models.annotations import Title
from bokeh.plotting import figure

from ammrank_dask.monitor.texts import label_of, number_text, seconds_text

BLUE, PALE, ORANGE, GREY, RED, INK = "#3f76b0", "#e3e6ea", "#e8912d", "#b9c0ca", "#c8372d", "#333c47"
STATE_COLOURS = {"waiting": PALE, "running": ORANGE, "end": BLUE, "failed": RED, "skipped": PALE}
STATE_WORDS = {"waiting": "waits", "skipped": "not due", "failed": "failed"}
NO_TRAINING = "no training tonight"
MAX_CATEGORIES, MAX_STARVED, MAX_WORKER_ROWS = 60, 25, 8


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


class Timeline(Panel):
    """The stages of the night over time."""

    def __init__(self) -> None:
        super().__init__("timeline", "Stages", x_range=Range1d(start=0, end=10), y_range=Range1d(start=-0.6, end=0.6))
        self.bars = empty_source("y", "left", "right", "colour")
        self.texts = empty_source("y", "x", "text")
        self.figure.hbar(
            y="y", left="left", right="right", height=0.62, fill_color="colour", line_color=None, source=self.bars
        )
        self.figure.text(
            x="x",
            y="y",
            text="text",
            x_offset=6,
            text_baseline="middle",
            text_font_size="11px",
            text_color=INK,
            source=self.texts,
        )
        self.figure.xaxis.axis_label = "seconds since the night began"
        self.figure.ygrid.grid_line_color = None
        self.figure.yaxis.major_label_text_font_size = "12px"

    def update(self, snapshot: dict[str, Any]) -> None:
        """Show the stages."""
        stages = snapshot["stages"]
        begins = [stage["started"] for stage in stages if stage["started"] is not None]
        start = snapshot["night"]["started"] or min(begins, default=snapshot["now"])
        y = [float(len(stages) - 1 - i) for i in range(len(stages))]
        left, right, cursor = [], [], 0.0
        for stage in stages:
            begin = cursor if stage["started"] is None else stage["started"] - start
            length = (stage["left"] or 0.0) if stage["state"] == "waiting" else stage["seconds"]
            left.append(round(begin, 1))
            right.append(round(begin + length, 1))
            cursor = max(cursor, begin + length)
        self.set(self.figure.title, text="Stages" if stages else "Stages: waits for a night to begin")
        self.set(self.figure.x_range, end=max(5.0, round(cursor * 1.5)))
        self.set(self.figure.y_range, end=max(0.6, len(stages) - 0.4))
        self.label(self.figure.yaxis[0], y, [label_of(stage["name"]) for stage in stages])
        colours = [STATE_COLOURS.get(stage["state"], GREY) for stage in stages]
        self.set(self.bars, data={"y": y, "left": left, "right": right, "colour": colours})
        self.set(self.texts, data={"y": y, "x": right, "text": [_stage_text(stage) for stage in stages]})


class Workers(Panel):
    """Users per second of work, by worker and stage; pale cells are slower than the others of their stage.

    A stage may count users first and qualifications later; only rates of one unit are compared.
    """

    def __init__(self) -> None:
        super().__init__(
            "workers", "Speed of workers", x_range=Range1d(start=-0.5, end=0.5), y_range=Range1d(start=-0.5, end=0.5)
        )
        self.cells = empty_source("x", "y", "alpha", "text", "colour")
        self.figure.rect(
            x="x",
            y="y",
            width=0.96,
            height=0.9,
            fill_color="colour",
            fill_alpha="alpha",
            line_color=None,
            source=self.cells,
        )
        self.figure.text(
            x="x",
            y="y",
            text="text",
            text_align="center",
            text_baseline="middle",
            text_font_size="11px",
            text_color=INK,
            source=self.cells,
        )
        self.figure.grid.grid_line_color = None
        self.figure.axis.axis_line_color = None
        self.figure.axis.major_tick_line_color = None

    def update(self, snapshot: dict[str, Any]) -> None:
        """Show the slowest workers of the stage that runs."""
        cells = {(cell["worker"], cell["stage"]): cell for cell in snapshot["workers"]}
        stages = [stage["name"] for stage in snapshot["stages"] if any(name == stage["name"] for _, name in cells)]
        last = stages[-1] if stages else None
        workers = sorted({worker for worker, _ in cells})
        best: dict[tuple[str, str], float] = {}
        for cell in cells.values():
            of_unit = cell["stage"], cell["unit"]
            best[of_unit] = max(cell["rate"], best.get(of_unit, 0.0))
        shares = {key: cell["rate"] / (best[cell["stage"], cell["unit"]] or math.inf) for key, cell in cells.items()}
        by_speed = sorted(workers, key=lambda worker: shares.get((worker, last), math.inf))
        rows = sorted(by_speed[:MAX_WORKER_ROWS])
        units = {stage: cell["unit"] for (_, stage), cell in cells.items()}
        data: dict[str, list[Any]] = {name: [] for name in ("x", "y", "alpha", "text", "colour")}
        for row, worker in enumerate(rows):
            for column, stage in enumerate(stages):
                if (worker, stage) in cells:
                    rate, unit = number_text(cells[worker, stage]["rate"]), cells[worker, stage]["unit"]
                    share = shares[worker, stage]
                    data["x"].append(float(column))
                    data["y"].append(float(len(rows) - 1 - row))
                    data["alpha"].append(round(0.12 + 0.4 * share, 2))
                    data["text"].append(rate if unit == units[stage] else f"{rate} {label_of(unit, 14)}/s")
                    data["colour"].append(ORANGE if share < 0.5 else BLUE)
        counted = "1 worker" if len(workers) == 1 else f"{len(workers)} workers"
        shown = f"the {len(rows)} slowest of {counted}" if len(workers) > len(rows) else counted
        title = f"Speed of {shown}; orange: below half the best"
        self.set(self.figure.title, text=title if rows else "Speed of workers: waits for the first task")
        self.set(self.figure.x_range, end=max(0.5, len(stages) - 0.5))
        self.set(self.figure.y_range, end=max(0.5, len(rows) - 0.5))
        columns = [f"{label_of(stage, 12)}\n{label_of(units[stage], 14)}/s" for stage in stages]
        self.label(self.figure.xaxis[0], [float(i) for i in range(len(stages))], columns)
        self.label(
            self.figure.yaxis[0], [float(len(rows) - 1 - i) for i in range(len(rows))], list(map(label_of, rows))
        )
        self.set(self.cells, data=data)


class Curve(Panel):
    """One fact of training over the epochs; `beside`, another fact, is drawn as a dashed line to compare with."""

    def __init__(
        self, name: str, fact: str, title: str, waiting: str, colour: str, beside: tuple[str, str] | None = None
    ) -> None:
        super().__init__(name, waiting)
        self.fact, self.title, self.waiting, self.beside = fact, title, waiting, beside
        self.points = empty_source("x", "y")
        self.level = empty_source("x", "y")
        self.figure.line(x="x", y="y", line_width=2, line_color=colour, source=self.points)
        self.figure.scatter(x="x", y="y", size=6, fill_color=colour, line_color="white", source=self.points)
        if beside is not None:
            self.figure.line(x="x", y="y", line_width=2, line_color=GREY, line_dash="dashed", source=self.level)
        self.figure.xaxis.axis_label = "epoch"
        self.figure.yaxis.formatter = NumeralTickFormatter(format="0.[0000]a")

    def update(self, snapshot: dict[str, Any]) -> None:
        """Show the rounds so far."""
        found = [fact for fact in snapshot["training"] if fact.get(self.fact) is not None]
        x = [fact["epoch"] - 1 + fact["round"] / max(1, fact.get("rounds", 1)) for fact in found]
        y = [float(fact[self.fact]) for fact in found]
        night = f" (night {label_of(found[-1]['night'])})" if found and found[-1]["night"] and not self.beside else ""
        known = [fact[self.beside[1]] for fact in found if fact.get(self.beside[1]) is not None] if self.beside else []
        waiting = f"{self.title}: {NO_TRAINING}" if _is_untrained(snapshot) else self.waiting
        level = f", {self.beside[0]} {known[-1]:.4g} dashed" if self.beside and known else ""
        self.set(self.figure.title, text=f"{self.title}: {y[-1]:.4g}{level}{night}" if y else waiting)
        self.set(self.points, data={"x": x, "y": y})
        # From the beginning, so that there is a line after the first epoch already.
        ends = [0.0, x[-1]] if known else []
        self.set(self.level, data={"x": ends, "y": [float(known[-1])] * 2 if known else []})


class PlanesPanel(Panel):
    """How many planes each category has."""

    def __init__(self) -> None:
        super().__init__(
            "planes", "Planes per category", x_range=Range1d(start=-0.6, end=0.6), y_range=DataRange1d(start=0)
        )
        self.bars = empty_source("x", "top", "name")
        self.figure.vbar(x="x", top="top", width=0.8, fill_color=BLUE, line_color=None, source=self.bars)
        self.figure.add_tools(HoverTool(tooltips=[("category", "@name"), ("planes", "@top")]))
        self.figure.xaxis.ticker = FixedTicker(ticks=[])
        self.figure.yaxis.ticker = BasicTicker(min_interval=1)
        self.figure.xaxis.axis_label = "categories, most planes first"
        self.figure.xgrid.grid_line_color = None

    def update(self, snapshot: dict[str, Any]) -> None:
        """Show the planes after the last round."""
        planes = snapshot["planes"]
        if planes is None:
            waits = NO_TRAINING if _is_untrained(snapshot) else "waits for the first round"
            self.set(self.figure.title, text=f"Planes per category: {waits}")
            return
        pairs = sorted(zip(planes["counts"], planes["categories"], strict=True), key=lambda pair: -pair[0])
        counts = [count for count, _ in pairs]
        title = f"{sum(counts):,} planes for {len(counts):,} categories, {counts.count(0):,} without any"
        self.set(self.figure.title, text=title)
        self.set(self.figure.x_range, end=max(0.6, len(counts) - 0.4))
        names = [label_of(name) for _, name in pairs]
        self.set(self.bars, data={"x": [float(i) for i in range(len(counts))], "top": counts, "name": names})


class Exposure(Panel):
    """Share of exposure by category while users are scored, beside the share of clicks; starved ones are red."""

    def __init__(self) -> None:
        super().__init__("exposure", "Exposure", x_range=Range1d(start=-0.6, end=0.6), y_range=DataRange1d(start=0))
        self.bars = empty_source("x", "top", "colour", "name", "users")
        self.clicks = empty_source("x", "y")
        bars = self.figure.vbar(x="x", top="top", width=0.74, fill_color="colour", line_color=None, source=self.bars)
        self.figure.scatter(
            x="x", y="y", marker="dash", size=13, line_color=INK, line_width=2, source=self.clicks,
            legend_label="share of clicks",
        )  # fmt: skip
        self.marks = empty_source("x", "top")
        self.figure.scatter(
            x="x", y="top", marker="inverted_triangle", size=9, fill_color=RED, line_color=None,
            source=self.marks, legend_label="starved",
        )  # fmt: skip
        tooltips = [("category", "@name"), ("share", "@top{0.00%}"), ("users", "@users{0,0}")]
        self.figure.add_tools(HoverTool(renderers=[bars], tooltips=tooltips))
        self.figure.yaxis.formatter = NumeralTickFormatter(format="0.[0]%")
        self.figure.xaxis.major_label_orientation = math.pi / 4
        self.figure.min_border_left = 80
        self.figure.xgrid.grid_line_color = None
        self.figure.legend.orientation = "horizontal"
        self.figure.legend.border_line_color = None
        self.figure.legend.label_text_font_size = "11px"
        self.figure.legend.visible = False

    def update(self, snapshot: dict[str, Any]) -> None:
        """Show the counts so far."""
        found = snapshot["exposure"]
        if found is None:
            is_unscored = any((stage["name"], stage["state"]) == ("score", "skipped") for stage in snapshot["stages"])
            waits = (
                "nobody is scored tonight, for there is no model" if is_unscored else "waits for the first scored users"
            )
            self.set(self.figure.title, text=f"Exposure per category: {waits}")
            return
        order = choose_categories(found["counts"], found["starved"])
        x = [float(i) for i in range(len(order))]
        clicked = found["click_share"] or []
        more = len(found["counts"]) - len(order)
        title = (
            f"Exposure of {number_text(found['users'])} users so far: {found['starved_categories']:,} of"
            f" {len(found['counts']):,} categories starved" + (f"; {more:,} more not drawn" if more else "")
        )
        tops = [found["share"][code] for code in order]
        starved = [found["starved"][code] for code in order]
        names = [label_of(found["categories"][code]) for code in order]
        self.set(self.figure.title, text=title, text_color=RED if any(starved) else INK)
        self.set(self.figure.legend[0], visible=True)
        self.set(self.figure.x_range, end=max(0.6, len(order) - 0.4))
        self.label(self.figure.xaxis[0], x, names)
        colours = [RED if is_starved else BLUE for is_starved in starved]
        users = [found["counts"][code] for code in order]
        self.set(self.bars, data={"x": x, "top": tops, "colour": colours, "name": names, "users": users})
        marked = [i for i, is_starved in enumerate(starved) if is_starved]
        above = 0.05 * max([*tops, *(clicked or [0.0])])
        heights = [above + max(tops[i], clicked[order[i]] if clicked else 0.0) for i in marked]
        self.set(self.marks, data={"x": [x[i] for i in marked], "top": heights})
        for entry, is_drawn in zip(self.figure.legend[0].items, (bool(clicked), bool(marked)), strict=True):
            self.set(entry, visible=is_drawn)  # what has no mark has no place in the legend
        shares = [clicked[code] for code in order] if clicked else []
        self.set(self.clicks, data={"x": x if clicked else [], "y": shares})


def _is_untrained(snapshot: dict[str, Any]) -> bool:
    return any((stage["name"], stage["state"]) == ("train", "skipped") for stage in snapshot["stages"])


def choose_categories(counts: Sequence[int], starved: Sequence[bool]) -> list[int]:
    """Return the codes to draw, largest first: all when there is room, else the starved and the largest ones."""
    by_size = sorted(range(len(counts)), key=lambda code: (-counts[code], code))
    if len(by_size) <= MAX_CATEGORIES:
        return by_size
    chosen = [code for code in by_size if starved[code]][-MAX_STARVED:]
    large = [code for code in by_size if not starved[code]][: MAX_CATEGORIES - len(chosen)]
    return sorted([*large, *chosen], key=lambda code: (-counts[code], code))


def make_panels() -> list[Panel]:
    """Return all charts of a page."""
    return [
        Timeline(),
        Workers(),
        Curve(
            "error",
            "validation_error",
            "Validation ε_dis",
            "Validation ε_dis: waits for the first epoch",
            ORANGE,
            beside=("popularity", "popularity_error"),
        ),
        Curve("loss", "loss", "Training loss", "Training loss: waits for the first round", BLUE),
        PlanesPanel(),
        Exposure(),
    ]


def _stage_text(stage: dict[str, Any]) -> str:
    step = stage["step"]
    if stage["state"] == "running":
        doing = f" · {label_of(step['name'], 26)} {step['done']:,}/{step['total']:,}" if step else ""
        left = f" · {seconds_text(stage['left'])} left" if stage["left"] is not None else ""
        return f"{seconds_text(stage['seconds'])}{left}{doing}"
    if stage["state"] == "end":
        return seconds_text(stage["seconds"])
    if stage["state"] == "waiting" and stage["left"]:
        return f"usually {seconds_text(stage['left'])}"
    return STATE_WORDS.get(stage["state"], "")
