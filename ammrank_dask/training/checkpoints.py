"""Keep the scratch folder of one training: decoded rows, checkpoints and the errors of its epochs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects.atomic import read_json, write_json
from ammrank_dask.storage.objects.folders import is_file, list_paths, remove
from ammrank_dask.storage.store.scratch_arrays import is_saved


@dataclass(frozen=True)
class TrainingFolder:
    """The folder of one training. `patience` epochs in a row without a new best error end it; None: all are made."""

    path: Path
    patience: int | None = None

    def claim(self, digest: str) -> None:
        """Make the folder, or check that it belongs to this training."""
        job = self.path / "job.json"
        if not is_file(job):
            remove(self.path)
            write_json(job, {"digest": digest}, durable=False)
        elif read_json(job) != {"digest": digest}:
            raise BadInput(f"{self.path} must hold checkpoints of this training, found others; remove the folder")

    def rows(self, partition: int) -> Path:
        """Return where the rows of a partition are."""
        return self.path / f"rows-{partition:05d}"

    def checkpoint(self, epoch: int, round_: int) -> Path:
        """Return where the model before a round is."""
        return self.path / f"checkpoint-{epoch:04d}-{round_:04d}"

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints that are whole, the latest last."""
        return [path for path in list_paths(self.path, "checkpoint-*") if is_saved(path)]

    def next_round(self) -> tuple[int, int]:
        """Return the epoch and round to go on with: that of the last checkpoint."""
        _, epoch, round_ = self.checkpoints()[-1].name.split("-")
        return int(epoch), int(round_)

    def history(self) -> list[dict[str, Any]]:
        """Return epoch, loss and validation error of every closed epoch."""
        path = self.path / "history.json"
        history: list[dict[str, Any]] = read_json(path) if is_file(path) else []
        return history

    def write_history(self, history: list[dict[str, Any]]) -> None:
        """Keep what the closed epochs came to."""
        write_json(self.path / "history.json", history, durable=False)

    def is_enough(self, history: list[dict[str, Any]]) -> bool:
        """Return whether the error has not fallen for as many epochs as are waited for."""
        best = best_epoch(history)
        return self.patience is not None and best is not None and len(history) - best >= self.patience

    def best_checkpoint(self) -> Path | None:
        """Return the checkpoint of the epoch with the least error; None when all epochs are made."""
        best = best_epoch(self.history()) if self.patience is not None else None
        return None if best is None else self.checkpoint(best, 0)

    def sweep_earlier(self, name: str) -> None:
        """Remove what rounds before that of a name left when training was interrupted."""
        for old in list_paths(self.path, "train-e*"):
            if not old.name.startswith(f"{name}-"):
                remove(old)

    def sweep(self, name: str) -> None:
        """Remove what a closed round does not need any more."""
        checkpoints = self.checkpoints()
        kept = {checkpoints[-1], self.best_checkpoint()}
        for old in [*list_paths(self.path, f"{name}-*"), *checkpoints]:
            if old not in kept:
                remove(old)


def best_epoch(history: list[dict[str, Any]]) -> int | None:
    """Return the epoch, from 1, with the least error; None before there is one."""
    measured = [(closed["validation_error"], closed["epoch"]) for closed in history]
    return min(((error, epoch) for error, epoch in measured if error is not None), default=(0.0, None))[1]
