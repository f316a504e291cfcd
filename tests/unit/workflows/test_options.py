"""What commands print: tables, and what a narrow terminal does with them."""

from ammrank_dask.workflows.session import options
from ammrank_dask.workflows.session.options import show_table

HEAD = ["key", "value", "default"]
ROWS = [["publish.hold", ", ".join(["used_share", "events_by_group", "heaviest_ids", "quarantined"]), "used_share"]]


def use_terminal(monkeypatch):
    """Let what is captured look like a terminal of 80 columns."""
    monkeypatch.setattr(options.sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")


def test_show_table__of_a_pipe_is_never_wrapped(capsys):
    show_table(HEAD, [*ROWS, ["seed", "x" * 100, "0"]])
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_show_table__wraps_cells_on_a_narrow_terminal(monkeypatch, capsys):
    use_terminal(monkeypatch)
    rows = [*ROWS, ["lake.[bold]events[/bold]", "/a/rather/long/path/" + "x" * 60, "events"]]
    show_table(HEAD, rows)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) > 3
    assert lines[0].split() == HEAD
    words = " ".join(lines)
    assert {"publish.hold", "heaviest_ids,", "lake.[bold]events[/bold]"} <= set(words.split())


def test_show_table__that_fits_looks_the_same_on_a_terminal(monkeypatch, capsys):
    use_terminal(monkeypatch)
    show_table(HEAD, [["a", "1", "22"]])
    assert capsys.readouterr().out == "key  value  default\na        1       22\n"
