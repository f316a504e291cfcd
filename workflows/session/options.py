"""The options, errors and progress that all commands share."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import json
import logging
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from ammrank_dask.storage.errors import REBUILD_COMMAND, AmmrankError, BadInput, HeldBack, SiteBusy, name_night
from ammrank_dask.storage.objects.account import is_of_group, refuse_account
from ammrank_dask.storage.objects.atomic import private_files
from ammrank_dask.storage.objects.folders import is_folder, local_path, require_regular
from ammrank_dask.workflows.session.deadline import STOPPED
from ammrank_dask.workflows.session.progress import VERBOSE

SHOW_TRACEBACK = "AMMRANK_TRACEBACK"
"""The variable with which the traceback of an unexpected error is shown; it may hold user ids."""
PACKAGE = "ammrank_dask"
EXIT_BROKEN_PIPE = 141
"""As a shell says it of a program whose reader is gone."""
SECONDS_TO_SEND_AGAIN = 0.05
"""A finalizer that a signal interrupted is over by then."""
EXIT_FAILED, EXIT_BAD_INPUT, EXIT_HELD, EXIT_BUSY, EXIT_INTERRUPTED, EXIT_TERMINATED = 1, 65, 66, 75, 130, 143
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

Function = TypeVar("Function", bound=Callable[..., Any])


class CommandFailed(click.ClickException):
    """An error as a command shows it: one sentence and an exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]

    def show(self, file: Any = None) -> None:
        """Print the sentence; names of files in it may have characters that a terminal takes for commands."""
        message = _CONTROLS.sub(lambda found: repr(found[0])[1:-1], self.message)
        click.echo(f"ammrank: {message}", err=True)


class AmmrankCommand(click.Command):
    """A command whose errors are sentences and whose exit codes are those of the contract."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
        for handler in logging.root.handlers:
            handler.setLevel(logging.WARNING)  # what is below goes to the log of the night, not to the terminal
            handler.addFilter(_is_said_here_only)
        with stopped_in_a_sentence(), private_files(), _repeated_once():
            try:
                return super().invoke(ctx)
            except BrokenPipeError:
                _leave_stdout()
                raise SystemExit(EXIT_BROKEN_PIPE) from None
            except AmmrankError as error:
                raise CommandFailed(name_own_night(str(error), ctx.params), exit_code_of(error)) from None
            except OSError as error:
                raise CommandFailed(_say_os_error(error), EXIT_FAILED) from None
            except (click.ClickException, click.exceptions.Exit, click.Abort):
                raise
            except Exception as error:
                if os.environ.get(SHOW_TRACEBACK):
                    raise
                raise CommandFailed(_say_unexpected(error), EXIT_FAILED) from None


def _is_said_here_only(record: logging.LogRecord) -> bool:
    """Return whether a record is news on the terminal: the end of a night is told by its command, in one sentence."""
    return not (record.name.endswith(".session.night") and record.levelno >= logging.ERROR)


@contextlib.contextmanager
def _repeated_once() -> Iterator[None]:
    """Show a warning of ours once: a night trains several models, and a command may run several nights."""
    filters = {handler: _NewWarnings() for handler in logging.root.handlers}
    for handler, only_new in filters.items():
        handler.addFilter(only_new)
    try:
        yield
    finally:
        for handler, only_new in filters.items():
            handler.removeFilter(only_new)


class _NewWarnings(logging.Filter):
    """Pass what a handler has not shown yet, and all that is not ours."""

    def __init__(self) -> None:
        super().__init__(PACKAGE)
        self.shown: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is new."""
        text = record.getMessage()
        is_new = text not in self.shown or not super().filter(record)
        self.shown.add(text)
        return is_new


def _leave_stdout() -> None:
    """Let nothing more be written to a reader that is gone, as `head` is when it has seen enough."""
    with contextlib.suppress(OSError, ValueError):  # in tests stdout is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say_unexpected(error: Exception) -> str:
    """Return where an error came from; not its text, which may hold an id."""
    if isinstance(error, MemoryError):
        return "memory ran out; give the command or its workers more, or use more partitions"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if PACKAGE in Path(frame.filename).parts] or list(frames)
    at = f" at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    return (
        f"an unexpected {type(error).__name__}{at}; what is published is whole; this is a bug in ammrank-dask, and"
        f" {SHOW_TRACEBACK}=1 shows where"
    )


def name_own_night(message: str, options: Mapping[str, Any]) -> str:
    """Put the site and the date of a command into the command that its message names.

    A command without a date means the published night.
    """
    site, date = options.get("site"), options.get("date")
    if REBUILD_COMMAND not in message or site is None:
        return message
    if date is None:
        from ammrank_dask.storage.site.site import Site

        with contextlib.suppress(AmmrankError):
            current = Site(site).current()
            date = None if current is None else current.date
    return name_night(message, site, date or yesterday())


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of the contract for what ended a command."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else EXIT_FAILED
    codes: tuple[tuple[type[BaseException], int], ...] = (
        (SiteBusy, EXIT_BUSY),
        (BadInput, EXIT_BAD_INPUT),
        (HeldBack, EXIT_HELD),
        (KeyboardInterrupt, EXIT_INTERRUPTED),
        (click.Abort, EXIT_INTERRUPTED),
    )
    return next((code for kind, code in codes if isinstance(error, kind)), EXIT_FAILED)


def message_of(error: BaseException) -> str:
    """Return what may be written down of an error: its sentence, or the class of one whose text may hold an id."""
    return str(error) if isinstance(error, AmmrankError | OSError) else type(error).__name__


def _say_os_error(error: OSError) -> str:
    place = f": {error.filename}" if error.filename else ""
    return f"{error.strerror or error}{place}; what is published is whole, run the command again"


@contextlib.contextmanager
def stopped_in_a_sentence() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the block, each with its sentence and exit code."""
    try:
        with _terminate_cleanly(), _signals_sent_again():
            yield
    except SystemExit as error:
        if error.code != EXIT_TERMINATED:
            raise
        raise CommandFailed(STOPPED[signal.SIGTERM], EXIT_TERMINATED) from None
    except (KeyboardInterrupt, click.Abort) as error:
        raise CommandFailed(STOPPED[signal.SIGINT], exit_code_of(error)) from None


@contextlib.contextmanager
def _terminate_cleanly() -> Iterator[None]:
    def stop(number: int, frame: Any) -> None:
        raise SystemExit(EXIT_TERMINATED)

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread: whoever called handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _signals_sent_again() -> Iterator[None]:
    """Send a signal again whose exception was raised where Python drops exceptions.

    That is in finalizers, and Dask's futures have one: a Ctrl-C that came while they were released was lost.
    """
    if threading.current_thread() is not threading.main_thread():  # whoever called handles signals
        yield
        return
    before = sys.unraisablehook
    sent: list[tuple[threading.Timer, signal.Signals]] = []

    def send_again(dropped: Any) -> None:
        number = _signal_behind(dropped.exc_value)
        if number is None:
            before(dropped)
        else:  # by a thread: here, in the hook, the exception would be dropped once more
            again = threading.Timer(SECONDS_TO_SEND_AGAIN, signal.pthread_kill, (threading.main_thread().ident, number))
            again.daemon = True
            again.start()
            sent.append((again, number))

    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = before
        for again, number in sent:
            if again.is_alive():  # the block has ended before
                again.cancel()
                signal.raise_signal(number)


def _signal_behind(error: BaseException | None) -> signal.Signals | None:
    if isinstance(error, KeyboardInterrupt):
        return signal.SIGINT
    is_terminated = isinstance(error, SystemExit) and error.code == EXIT_TERMINATED
    return signal.SIGTERM if is_terminated else None


class DateType(click.ParamType):
    """A date as YYYY-MM-DD."""

    name = "YYYY-MM-DD"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dt.date:
        """Return the date."""
        if isinstance(value, dt.date):
            return value
        try:
            return dt.date.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a date YYYY-MM-DD", param, ctx)


DATE = DateType()


class Assignment(click.ParamType):
    """NAME=VALUE with a name out of a list."""

    name = "NAME=VALUE"

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Return the name and the value."""
        if isinstance(value, tuple):
            return value
        name, found, given = value.partition("=")
        if not found or name not in self.names or not given:
            self.fail(f"{value!r} is not NAME=VALUE with a name of {', '.join(self.names)}", param, ctx)
        return name, given


class LocalPath(click.Path):
    """A path of a file system: a site, or what a command writes, is not in an object store.

    A pipe or a device is not taken for a file: one would be put in its place.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        name = "path" if param is None or param.name is None else param.name
        try:
            local_path(value, "a site" if name == "site" else f"--{name}" if isinstance(param, click.Option) else name)
            if not self.dir_okay:
                require_regular(Path(value))
        except BadInput as error:
            raise CommandFailed(str(error), EXIT_BAD_INPUT) from None
        return super().convert(value, param, ctx)


FOLDER = LocalPath(file_okay=False, path_type=Path)


class LakePathType(click.ParamType):
    """A path of this machine or a URL."""

    name = "PATH or URL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        from ammrank_dask.storage.lake.paths import parse_path  # most commands do not need pyarrow's file systems

        return parse_path(value) if isinstance(value, str) else value


def lake_option(function: Function) -> Function:
    """Add --lake."""
    text = "Folder or URL (s3://…) with events/date=YYYY-MM-DD/*.parquet, users.parquet and taxonomy.csv."
    return click.option("--lake", required=True, type=LakePathType(), help=text)(function)


def yesterday() -> dt.date:
    """Return yesterday's date in UTC."""
    return (dt.datetime.now(dt.UTC) - dt.timedelta(days=1)).date()


def site_argument(function: Function) -> Function:
    """Add the argument SITE."""
    return click.argument("site", type=FOLDER)(function)


def date_option(function: Function) -> Function:
    """Add --date."""

    @functools.wraps(function)
    def with_date(*args: Any, date: dt.date, **kwargs: Any) -> Any:
        _refuse_future(kwargs.get("site"), date)
        return function(*args, date=date, **kwargs)

    wrapped: Any = with_date
    return click.option("--date", type=DATE, default=yesterday, show_default="yesterday, UTC", help="The night.")(
        wrapped
    )


def nights_options(function: Function) -> Function:
    """Add --date, or --from and --to for several nights; the command gets the list `dates`."""

    @functools.wraps(function)
    def with_dates(*args: Any, date: dt.date | None, first: dt.date | None, last: dt.date | None, **kwargs: Any) -> Any:
        if date is not None and (first is not None or last is not None):
            raise click.UsageError("give --date for one night, or --from and --to for several, not both")
        if last is not None and first is None:
            raise click.UsageError("--to needs --from, the first night to run")
        begin = first or date or yesterday()
        end = last or (yesterday() if first is not None else begin)
        if end < begin:
            raise click.UsageError(f"the last night must not be before the first, got {begin} to {end}")
        _refuse_future(kwargs.get("site"), end)
        dates = [begin + dt.timedelta(number) for number in range((end - begin).days + 1)]
        return function(*args, dates=dates, **kwargs)

    wrapped: Any = with_dates
    for name, variable, text in (
        ("--to", "last", "The last of several nights; default: yesterday, UTC."),
        ("--from", "first", "The first of several nights, run one after the other."),
        ("--date", "date", "The night; default: yesterday, UTC."),
    ):
        wrapped = click.option(name, variable, type=DATE, help=text)(wrapped)
    return wrapped


def _refuse_future(site: Path | None, date: dt.date) -> None:
    """Refuse a night that is still to come: a site that bridges missing days would go there and never come back.

    A lake may have days after today: it is simulated, or the clock of this machine is wrong.
    """
    today = dt.datetime.now(dt.UTC).date()
    if site is None or date <= today:
        return
    # Here, because most commands need neither and they take seconds to import.
    from ammrank_dask.storage.site.site import Site
    from ammrank_dask.workflows.session.config import load_config
    from ammrank_dask.workflows.session.settings import lake_days

    place = Site(site)
    newest = max(lake_days(place, load_config(place.config_path)))
    if date > newest:
        raise BadInput(
            f"{date} is after today, {today} UTC, and after {newest}, the newest day of the lake;"
            " give a night whose day is over"
        )


def writes_site(function: Function) -> Function:
    """Let a command write to its site as the owner of the site or as one of its group, and refuse other accounts."""

    @functools.wraps(function)
    def as_own_account(*args: Any, **kwargs: Any) -> Any:
        site = kwargs.get("site")
        if not isinstance(site, Path) or not is_folder(site):  # in a bucket, or who makes it owns it
            return function(*args, **kwargs)
        refuse_account(site)
        with private_files(for_group=is_of_group(site)):
            return function(*args, **kwargs)

    wrapped: Any = as_own_account
    return wrapped


def computing_options(function: Function) -> Function:
    """Add --cluster, --json, --quiet and --verbose; a command that computes also writes to its site."""
    function = click.option(
        "--cluster", metavar="FILE", help="Cluster file; default: the site's, then ./cluster.yaml."
    )(writes_site(function))
    function = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")(function)
    function = click.option("--quiet", is_flag=True, help="Show no progress.")(function)
    return click.option(
        "--verbose", is_flag=True, expose_value=False, callback=_keep_verbose, help="Show the tasks of every stage."
    )(function)


def _keep_verbose(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    context.meta[VERBOSE] = value


def show(result: dict[str, Any], as_json: bool) -> None:
    """Print the result of a command: one JSON object, or one line per fact, wrapped between words on a terminal."""
    if as_json:
        click.echo(json.dumps(result, sort_keys=True, default=str))
        return
    width = max(map(len, result), default=0)
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for name, value in result.items():
        line = f"{name.ljust(width)}  {_value_text(value)}"
        if columns is not None and len(line) > columns:
            line = textwrap.fill(
                line, columns, subsequent_indent=" " * (width + 2), break_long_words=False, break_on_hyphens=False
            )
        click.echo(line)


def show_sentence(sentence: str) -> None:
    """Print a sentence, wrapped between words on a terminal."""
    if sys.stdout.isatty():
        sentence = textwrap.fill(sentence, shutil.get_terminal_size().columns, break_on_hyphens=False)
    click.echo(sentence)


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def show_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, n_left: int = 1) -> None:
    """Print rows below each other: the first columns to the left, the others to the right.

    On a terminal that is too narrow, cells are wrapped.
    """
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if columns is not None and sum(widths) + 2 * (len(widths) - 1) > columns:
        _show_wrapped(head, rows, n_left, columns)
        return
    click.echo("\n".join(table_lines(head, rows, n_left=n_left)))


def table_lines(head: Sequence[str], rows: Sequence[Sequence[str]], *, n_left: int = 1) -> list[str]:
    """Return a table as lines: the first columns to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in (head, *rows):
        cells = [
            text.ljust(width) if place < n_left else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _show_wrapped(head: Sequence[str], rows: Sequence[Sequence[str]], n_left: int, columns: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for place, name in enumerate(head):
        table.add_column(Text(name), justify="left" if place < n_left else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(width=columns, highlight=False).print(table)
