"""Train AMM-rank or AMM-rank-plus on stored features: logical shards, rounds and merges on a Dask cluster.

The result depends on the features, the parameters and the seed, never on the number of workers: blocks are dealt to a
fixed number of logical shards, and what they learn is merged in their order. Rows are decoded once into a scratch
folder and read from there; after every round the merged model is written, and a rerun goes on from the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from ammrank_dask.features.store import Features, check_features
from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.model.amm_rank_plus import PACE, AMMRankPlus, usual_epochs
from ammrank_dask.model.own_term import own_parameters
from ammrank_dask.model.saved import RankModel, make_model
from ammrank_dask.runtime.client import client_by_name, current_client
from ammrank_dask.runtime.tasks import Progress, silent
from ammrank_dask.storage.errors import BadInput, suggest
from ammrank_dask.storage.objects.atomic import digest_of
from ammrank_dask.storage.objects.folders import local_path, remove
from ammrank_dask.storage.store.ids import UserIds
from ammrank_dask.training.driver import Training, TrainingPlan, Windows


@dataclass(frozen=True)
class TrainSettings:
    """What is trained, and how; nothing here depends on the cluster.

    Parameters
    ----------
    model
        `amm-rank-plus`, or `amm-rank`, the paper's method.
    shards, rounds_per_epoch, block_rows
        Logical shards, merges an epoch, and rows of a block. One shard is the plain loop over all blocks.
    max_rows
        Rows above which only some partitions of each window train: more rows hardly lower the error.
    epochs, max_planes, seed
        As in `AMMRank` and `AMMRankPlus`; None makes 5 epochs, or 2 of the latter with 10,000 rows or more.
    patience
        End after so many epochs in a row without a new best error of the validation users, and publish the best
        epoch's model instead of the last one; None makes all epochs.
    average
        Publish the mean of the epoch-end models of the last half of the epochs; None lets the validation users
        choose between it and the last model.
    variant
        The columns to learn from; all when None.
    regularization, rank_weight
        As in `AMMRank`, and only for it.
    kappa, pace, clickers_per_plane, n_clusterings, n_centers, own_columns, own_groups
        As in `AMMRankPlus`, and only for it; None is a pace of ½. Which columns are a category's own is read from their
        names by default.

    Examples
    --------
    >>> settings = TrainSettings(epochs=3, shards=16)
    >>> train(features, settings=settings, seed=1)  # doctest: +SKIP
    """

    model: str = AMMRankPlus.method
    shards: int = 8
    rounds_per_epoch: int = 2
    block_rows: int = 1024
    max_rows: int = 1_000_000
    epochs: int | None = None
    max_planes: int = 5
    patience: int | None = None
    average: bool | None = None
    variant: str | None = None
    seed: int = 0
    regularization: float | None = None
    rank_weight: str | None = None
    kappa: float | None = None
    pace: float | None = None
    clickers_per_plane: int | None = None
    n_clusterings: int | None = None
    n_centers: int | None = None
    own_columns: Sequence[Sequence[int]] | np.ndarray | None = None
    own_groups: Sequence[int] | None = None

    @property
    def plan(self) -> TrainingPlan:
        """How training is cut and when it ends."""
        return TrainingPlan(self.shards, self.rounds_per_epoch, self.block_rows, self.patience, self.max_rows)

    def of_kinds(self) -> dict[str, dict[str, Any]]:
        """Return by model the parameters that only this one has."""
        names = {
            AMMRank.method: ("regularization", "rank_weight"),
            AMMRankPlus.method: (
                "kappa", "pace", "clickers_per_plane", "n_clusterings", "n_centers", "own_columns", "own_groups",
            ),
        }  # fmt: skip
        return {model: {name: getattr(self, name) for name in own} for model, own in names.items()}


@client_by_name
def train(
    features: Features,
    *,
    client: Client | None = None,
    settings: TrainSettings | None = None,
    start: RankModel | None = None,
    earlier: Sequence[Features] = (),
    tonight: Features | None = None,
    renames: Mapping[str, str] | None = None,
    left_out: UserIds | None = None,
    scratch: str | Path | None = None,
    progress: Progress = silent,
    **options: Any,
) -> RankModel:
    """Train on the labelled training users of all partitions and return the fitted model.

    Users whom `split_of` puts into validation or gate are left out; the error on validation users is measured after
    every epoch and kept in `training_` of the model.

    Parameters
    ----------
    features
        Features with rankings, in a folder that all workers see.
    client
        The cluster, which is left as it is; None for the current client.
    settings
        What is trained, and how: the model, its epochs, shards and parameters.
    start
        A fitted model to begin with, columns and categories matched by name; None begins without planes.
    earlier
        Features with rankings of earlier label windows, the newest first: their training users are rows as well.
        Only for `amm-rank-plus`.
    tonight
        The features that will be scored: the prior is their popularity, as it is for the rows of each window. None
        takes that of `features`. Rows of all windows are brought to their columns and categories by name: what is gone
        is left out, and a column that came since is 0.
    renames
        The names of now of categories that windows have under another name.
    left_out
        Users whose rows do not train, in any window.
    scratch
        Folder for decoded rows and checkpoints, seen by all workers; beside the features when None. It is removed
        at the end, and a rerun after a crash goes on from it.
    **options
        Fields of `TrainSettings`, which replace those of `settings`: `epochs=3`, `model="amm-rank"`.
    """
    client = current_client(client)
    check_features(features)
    chosen = _choose(settings, options)
    model, variant, plan = chosen.model, chosen.variant, chosen.plan
    epochs = _epochs_of(model, [features, *earlier]) if chosen.epochs is None else chosen.epochs
    windows = Windows(tuple(earlier), tonight, renames or {}, left_out)
    _refuse_other_windows(model, features, windows, variant)
    shared = {
        "epochs": epochs, "max_planes": chosen.max_planes, "average": bool(chosen.average), "seed": chosen.seed,
    }  # fmt: skip
    ranker = _make_model(model, chosen.of_kinds(), tonight or features, variant, **shared)
    subject = {
        "features": [features.run.digest, features.run.checksums],
        "windows": windows.identity(features),
        "variant": variant,
        "plan": asdict(plan),
        "model": [model, ranker.get_params()],
        "start": None if start is None else start.digest(),
    }
    digest = digest_of(subject)
    folder = local_path(scratch, "scratch") if scratch is not None else features.path.parent
    training = Training(client, features, ranker, plan, variant, folder / f".training-{digest}", progress, windows)
    fitted = training.run(chosen.average, start, digest)
    remove(training.folder.path)
    return fitted


def _choose(settings: TrainSettings | None, options: Mapping[str, Any]) -> TrainSettings:
    """Return the settings with the fields that were given by name."""
    if not isinstance(settings, TrainSettings | None):
        raise TypeError(f"settings must be TrainSettings, got {type(settings).__name__}; pass TrainSettings(…)")
    known = [each.name for each in fields(TrainSettings)]
    for name in options:
        if name not in known:
            raise TypeError(f"train() has no argument {name!r}; {suggest(name, known, 'settings are')}")
    return replace(settings or TrainSettings(), **options)


def _epochs_of(model: str, windows: Sequence[Features]) -> int:
    """Return the epochs of a training that was not told how many."""
    return usual_epochs(sum(each.n_users for each in windows)) if model == AMMRankPlus.method else AMMRank.epochs


def _refuse_other_windows(model: str, features: Features, windows: Windows, variant: str | None) -> None:
    """Refuse windows that cannot be learned from together."""
    if windows.earlier and model != AMMRankPlus.method:
        raise BadInput(f"earlier must not be given for {model}, it is a parameter of {AMMRankPlus.method}")
    if windows.tonight is not None:
        check_features(windows.tonight)
    for each in (features, *windows.earlier):
        check_features(each)
        if not each.has_rankings:
            raise BadInput(f"features at {each.path} must have rankings to train on, found none")
        windows.match(each, features, variant)


def _make_model(
    kind: str,
    by_kind: Mapping[str, Mapping[str, Any]],
    features: Features,
    variant: str | None,
    **shared: Any,
) -> RankModel:
    """Return the unfitted model, refusing parameters that are of the other kind."""
    for other, parameters in by_kind.items():
        given = [name for name, value in parameters.items() if value is not None]
        if other != kind and given:
            raise BadInput(f"{given[0]} must not be given for {kind}, it is a parameter of {other}; leave it out")
    chosen = {name: value for name, value in by_kind.get(kind, {}).items() if value is not None}
    if kind == AMMRankPlus.method:
        chosen = {"pace": PACE, **chosen}
        chosen = (
            chosen
            if "own_columns" in chosen
            else chosen | own_parameters(features.columns_of(variant), features.categories)
        )
    if "own_columns" in chosen:
        chosen["own_columns"] = np.asarray(chosen["own_columns"]).tolist()
    ranker = make_model(kind, **shared, **chosen, n_categories=len(features.categories))
    ranker.check_parameters()
    if isinstance(ranker, AMMRankPlus):
        ranker.own_term(features.n_columns(variant), len(features.categories))
    return ranker
