"""Policies side by side on the page, and what fairness costs, as soon as the report has measured them."""

from __future__ import annotations

from typing import Any

from bokeh.models import DataRange1d, HoverTool, NumeralTickFormatter

from ammrank_dask.monitor.panel import BLUE, GREY, ORANGE, Panel, empty_source
from ammrank_dask.monitor.texts import label_of, table

_HEAD = ("policy", "starved users", "over-exposed users", "starved categories", "expected clicks", "clicked since")


def policies_html(snapshot: dict[str, Any]) -> str:
    """Return the policies as a table, the active one first."""
    rows = sorted(snapshot.get("policies") or [], key=lambda row: not row["in_force"])
    base = next((row["expected_clicks"] for row in rows if row["in_force"]), None)
    lines = [
        (
            label_of(row["name"]) + (", active" if row["in_force"] else ""),
            f"{row['starved_users']:,}",
            f"{row['overexposed_users']:,}",
            f"{row['starved_categories']:,}",
            _clicks(row["expected_clicks"], None if row["in_force"] else base),
            "–" if row["clicked"] is None else f"{row['clicked']:,} of {row['slots']:,}",
        )
        for row in rows
    ]
    return f"<h2>Policies side by side</h2>{table(_HEAD, lines, empty='They are compared when the report is written.')}"


def _clicks(expected: float | None, base: float | None) -> str:
    if expected is None:
        return "–"
    beside = f" ({expected / base - 1:+.1%})" if base else ""
    return f"{expected:,.0f}{beside}"


class Fairness(Panel):
    """Expected clicks against starved categories: `balanced` by floor, and the other policies."""

    def __init__(self) -> None:
        super().__init__("fairness", "What fairness costs", x_range=DataRange1d(), y_range=DataRange1d())
        self.floors = empty_source("x", "y", "name")
        self.others = empty_source("x", "y", "name", "colour")
        self.figure.line(x="x", y="y", line_width=2, line_color=BLUE, source=self.floors)
        drawn: list[Any] = [
            self.figure.scatter(x="x", y="y", size=7, fill_color=BLUE, line_color="white", source=self.floors),
            self.figure.scatter(x="x", y="y", size=10, fill_color="colour", line_color="white", source=self.others),
        ]
        tooltips = [("", "@name"), ("starved categories", "@x"), ("expected clicks", "@y{0.00%} of each user's best")]
        self.figure.add_tools(HoverTool(renderers=drawn, tooltips=tooltips))
        self.figure.xaxis.axis_label = "starved categories"
        self.figure.yaxis.formatter = NumeralTickFormatter(format="0.[0]%")

    def update(self, snapshot: dict[str, Any]) -> None:
        """Show what the report measured on its sample of users."""
        measured = snapshot.get("fairness")
        if not measured:
            self.set(self.figure.title, text="What fairness costs: waits for the report")
            return
        base = max(measured["policies"]["user_top_k"]["expected_clicks"], 1e-300)
        floors = [entry for entry in measured["floors"] if "expected_clicks" in entry]
        self.set(self.floors, data=_points(floors, base) | {"name": [f"floor {entry['floor']:g}" for entry in floors]})
        names = list(measured["policies"])
        others = _points([measured["policies"][name] for name in names], base)
        colours = [ORANGE if name == "user_top_k" else GREY for name in names]
        self.set(self.others, data=others | {"name": [label_of(name) for name in names], "colour": colours})
        fair = next((entry for entry in floors if not entry["starved_categories"]), None)
        cost = (
            ""
            if fair is None
            else f": none starves from floor {fair['floor']:g} on, {fair['expected_clicks'] / base - 1:+.1%}"
        )
        self.set(self.figure.title, text=f"What fairness costs, {measured['users']:,} users{cost}")


def _points(entries: list[dict[str, Any]], base: float) -> dict[str, list[Any]]:
    return {
        "x": [entry["starved_categories"] for entry in entries],
        "y": [entry["expected_clicks"] / base for entry in entries],
    }
