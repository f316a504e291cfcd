"""Fold day partials into the interest state: plan from which state to go on, and do it per partition."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client

from ammrank_dask.ingest.interest_state import InterestState, end_of, fold_days
from ammrank_dask.monitor.performance import measure
from ammrank_dask.runtime.run_in_work import begin_runs
from ammrank_dask.runtime.tasks import Call, Progress, run_together, silent
from ammrank_dask.storage.objects.atomic import digest_of
from ammrank_dask.storage.store.manifests import StateManifest
from ammrank_dask.storage.store.parts import PartRef, WrittenPart, write_part
from ammrank_dask.storage.store.registry import DAY, STATE
from ammrank_dask.storage.store.runs import Run, finish_run, is_finished

logger = logging.getLogger(__name__)

History = Sequence[tuple[dt.date, str | None]]
"""Consecutive dates with the digest of each day's input, None for a day that is bridged."""

DayPart = tuple[dt.date, PartRef | None]


def state_digest(settings: Mapping[str, Any], history: History) -> str:
    """Return the digest of a state: the settings and every day that is in it, however it was folded."""
    return digest_of([dict(settings), [[str(date), digest] for date, digest in history]])


def find_base(states: Sequence[Run], history: History) -> tuple[Run | None, int]:
    """Return the state from which the least is left to fold, and how many days of `history` it has.

    A state fits when its days are the first days of `history`: a corrected day rules out all states that have it.
    """
    best: tuple[Run | None, int] = (None, 0)
    for run in states:
        days = StateManifest.of(run).days
        if len(days) > best[1] and list(history[: len(days)]) == days:
            best = (run, len(days))
    return best


@dataclass(frozen=True)
class FoldPlan:
    """States to write: from `base`, over `days`, one after each date of `outputs`."""

    base: Run | None
    days: tuple[tuple[dt.date, Run | None], ...]
    outputs: Mapping[dt.date, Path]


def fold_states(
    client: Client,
    plans: Sequence[FoldPlan],
    *,
    history: History,
    settings: Mapping[str, Any],
    folded_with: Sequence[Mapping[str, Any]] = (),
    alpha: float,
    max_age_days: int,
    n_partitions: int,
    id_kind: str,
    n_cells: int,
    progress: Progress = silent,
) -> None:
    """Write the states of all plans, each partition in one task, and finish their runs.

    `folded_with` are the taxonomies and numbers of partitions that the digests of their days are of, when there are
    several.
    """
    unfinished = [(plan, date, path) for plan in plans for date, path in plan.outputs.items() if not is_finished(path)]
    with contextlib.ExitStack() as stack:
        runs = begin_runs(client, [path for *_, path in unfinished], n_partitions)
        work = {path: stack.enter_context(run) for (*_, path), run in zip(unfinished, runs, strict=True)}
        todo = {path: set(run.todo) for path, run in work.items()}
        calls: list[Call] = []
        partitions: list[int] = []
        for plan in plans:
            for partition in range(n_partitions):
                outputs = {date: path for date, path in plan.outputs.items() if partition in todo.get(path, ())}
                if outputs:
                    base, days = part_of(plan.base, partition), parts_of(plan.days, partition)
                    task = base, days, partition, outputs, alpha, max_age_days, id_kind, n_cells
                    calls.append((fold_partition, task))
                    partitions.append(partition)

        def keep(number: int, written: Mapping[Path, WrittenPart]) -> None:
            for path, part in written.items():
                work[path].add(partitions[number], part)

        weights = [1 / max(1, len(plans))] * len(calls)  # the states of a night are folded in the tasks of one
        run_together(client, "fold", calls, weights=weights, progress=progress, units=_users_of, on_result=keep)
        for plan, date, path in unfinished:
            until = [(day, digest) for day, digest in history if day <= date]
            finish_run(
                path,
                STATE.kind,
                state_digest(settings, until),
                work[path].parts,
                config={
                    **settings,
                    "date": str(date),
                    "id_kind": id_kind,
                    **_earlier(plan.base, settings, folded_with),
                },
                inputs=[[str(day), digest] for day, digest in until],
            )
            logger.info("folded the state of %s: %d days", date, len(until))


def _users_of(written: Mapping[Path, WrittenPart]) -> int:
    return max(part.facts.rows for part in written.values())


def _earlier(base: Run | None, settings: Mapping[str, Any], folded_with: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the manifest of a state keeps of other settings before; nothing when there were none."""
    before = None if base is None else StateManifest.of(base).taxonomy
    changed = {} if before in (None, settings.get("taxonomy")) else {"taxonomy_before": before}
    return changed if len(folded_with) < 2 else {**changed, "folded_with": [dict(one) for one in folded_with]}


def part_of(run: Run | None, partition: int) -> PartRef | None:
    """Return one partition of a run, None for none."""
    return None if run is None else run.part(partition)


def parts_of(days: Sequence[tuple[dt.date, Run | None]], partition: int) -> list[DayPart]:
    """Return one partition of every day."""
    return [(date, part_of(run, partition)) for date, run in days]


def fold_partition(
    base: PartRef | None,
    days: Sequence[DayPart],
    partition: int,
    outputs: Mapping[dt.date, Path],
    alpha: float,
    max_age_days: int,
    id_kind: str,
    n_cells: int,
) -> dict[Path, WrittenPart]:
    """Fold one partition, write it after each date of `outputs`, and return what was written of each run."""
    written = {}
    state = InterestState.empty(id_kind, n_cells) if base is None else InterestState.from_part(base, STATE)
    remaining = list(days)
    for date in sorted(outputs):
        due = [day for day in remaining if day[0] <= date]
        remaining = remaining[len(due) :]
        if due:
            partials = (None if part is None else InterestState.from_part(part, DAY) for _, part in due)
            end = end_of(due[0][0])
            state = fold_days(state, partials, first_end=end, alpha=alpha, max_age_days=max_age_days)
        with measure("write"):
            facts = write_part(outputs[date], partition, STATE, state.drop_empty_users().to_arrays())
        written[outputs[date]] = WrittenPart(facts)
    return written
