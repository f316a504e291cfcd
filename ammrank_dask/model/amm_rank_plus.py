"""Learn to rank categories with AMM-rank-plus: a prior, an own term, memberships and planes."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from ammrank_dask.kernels.own_term import HAT_SCALE
from ammrank_dask.kernels.scoring_plus import OwnPieces, PlusPanels
from ammrank_dask.model.explain import PlusScore, explain_plus_row
from ammrank_dask.model.kept_model import KeptModel
from ammrank_dask.model.memberships import GEOMETRIES, ClusteringSettings, Memberships
from ammrank_dask.model.own_term import OwnTerm, check_own_columns, own_columns_of_names
from ammrank_dask.model.plane_panels import arrange_planes, cut_into_panels, order_planes, top_categories
from ammrank_dask.model.plus_basis import (
    PlusBasis,
    PlusRows,
    RankingCounts,
    basis_arrays,
    basis_from,
    count_rankings,
    geometry_of,
    make_basis,
    prepare_plus_rows,
    sample_rows,
)
from ammrank_dask.model.plus_sums import PlusMean, PlusState, rates_of, train_plus_block
from ammrank_dask.model.rows import (
    NO_CATEGORY,
    Blocks,
    Rows,
    as_codes,
    as_csr,
    check_n_features,
    check_rankings,
    count_categories,
)
from ammrank_dask.storage.in_memory import is_collection
from ammrank_dask.storage.numbers import finite_number, whole_number
from ammrank_dask.storage.objects.atomic import digest_of

logger = logging.getLogger(__name__)

PACE = 0.5
"""The pace on clicks: what is learned from them must hold in the month after them."""
_MANY_ROWS, _EPOCHS_OF_MANY = 10_000, 2
_KEPT_BYTES = 512 << 20


def usual_epochs(n_rows: int) -> int:
    """Return the passes over so many rows of clicks, for the same reason: 5, or 2 from 10,000 rows on.

    Examples
    --------
    >>> usual_epochs(9_999), usual_epochs(10_000)
    (5, 2)
    """
    return _EPOCHS_OF_MANY if n_rows >= _MANY_ROWS else AMMRankPlus.epochs


@dataclass(kw_only=True, eq=False, repr=False)
class AMMRankPlus(KeptModel):
    """Rank categories by s_i(x) = b_i + Σ_q h_q(x_qi) + max_j w_ij · z, learned from partial rankings.

    b_i is the log odds of a click on i in the training rows. h_q, shared by all categories, is what the row's own
    column of kind q for the category counts, the first with what b_i makes of it. z is the row at norm 1, how much it
    belongs to the nearest centres of some clusterings, and a constant. Rows are given as they are stored: the model
    normalises them itself.

    Parameters
    ----------
    kappa
        κ, above 0: λ = κ / training rows. Large κ falls back to prior and own term.
    max_planes, clickers_per_plane
        A category has one plane for so many training rows that rank it, between 1 and `max_planes`.
    epochs
        Passes over the rows.
    pace
        Above 0: how much farther than usual a step moves the planes.
    n_clusterings, n_centers
        Clusterings of the training rows, 0 for none, and centres of each; None for a number that follows from the rows.
    own_columns, own_groups
        (kinds, categories) column numbers, -1 where a category has none: which column is a category's own. Kinds with
        the same number in own_groups share a norm; by default each has its own. A category whose column of the first
        kind is not 0 is also lifted by a function of its prior. None for no own term.
    geometry
        `cosine`: rows are brought to norm 1 and clustered by angle; `euclidean`: rows are taken as they are. None:
        euclidean where every training row ranks all categories.
    bias
        The value of a constant feature added to every row; 0 for none.
    average
        Keep the mean of the models at the ends of the last half of the epochs instead of the last model.
    n_categories
        L; by default one more than the highest code in the rankings, or the columns of the ranks.
    seed
        Decides the order of the rows and the clusterings.

    Attributes
    ----------
    basis_
        Prior, limits of planes, clusterings and own term.
    weights_
        (columns of z, n_planes) float32, the constant as last row, planes sorted by category.
    plane_category_, n_planes_, popularity_, n_features_in_, n_categories_, n_steps_
        As in `AMMRank`.
    squares_, own_squares_
        (columns of z,) float64, the squared pushes that met each column, and the squared gradients of the own weights:
        a warm start needs them.
    categories_, columns_, variant_, training_
        As in `AMMRank`.

    Examples
    --------
    >>> X = np.array([[1.0, 0.0], [0.0, 1.0]] * 20)
    >>> rankings = np.array([[0, 1], [1, 2]] * 20)
    >>> AMMRankPlus(n_categories=3).fit(X, rankings).predict(X[:2])
    array([[0, 1, 2],
           [2, 1, 0]], dtype=int32)

    It is an estimator of scikit-learn: in a search, and as the last step of a pipeline.

    >>> from sklearn.model_selection import GridSearchCV
    >>> search = GridSearchCV(AMMRankPlus(epochs=1), {"kappa": [0.005, 0.05]}, cv=2).fit(X, rankings)
    >>> search.best_params_
    {'kappa': 0.005}
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import MaxAbsScaler
    >>> make_pipeline(MaxAbsScaler(), AMMRankPlus(epochs=1)).fit(X, rankings).predict(X[:1])
    array([[0, 1, 2]], dtype=int32)
    """

    method: ClassVar[str] = "amm-rank-plus"
    reads_stored_rows: ClassVar[bool] = True

    kappa: float = 0.005
    max_planes: int = 5
    clickers_per_plane: int = 300
    epochs: int = 5
    pace: float = 1.0
    n_clusterings: int = 3
    n_centers: int | None = None
    own_columns: np.ndarray | Sequence[Sequence[int]] | None = None
    own_groups: Sequence[int] | None = None
    geometry: str | None = None
    bias: float = 1.0
    average: bool = True
    n_categories: int | None = None
    seed: int = 0

    basis_: PlusBasis = field(init=False)
    squares_: np.ndarray = field(init=False)
    own_squares_: np.ndarray = field(init=False)

    def learn_blocks(self, blocks: Blocks, n_categories: int | None) -> Self:
        """Learn from blocks of rows, in the order in which `AMMRank` visits them."""
        self.check_parameters()
        if n_categories is None:
            n_categories = count_categories(blocks)
        basis = self._basis_of_blocks(blocks, n_categories)
        prepared = _PreparedBlocks(blocks, basis)
        state, mean = PlusState.empty(basis), PlusMean()
        options = self.block_options(basis)
        for epoch in range(self.epochs):
            started = time.perf_counter()
            loss = 0.0
            for block in np.random.default_rng([self.seed, epoch]).permutation(len(blocks)):
                rows, rankings, tied = prepared[int(block)]
                order = np.random.default_rng([self.seed, epoch, int(block)]).permutation(len(rows))
                loss += train_plus_block(state, rows, rankings, order, tied=tied, **options)
            if self.average and epoch >= self.epochs // 2:
                self.add_to_mean(mean, state, options)
            logger.info(
                "epoch %d of %d: %d rows, loss %.4f, %d planes, %.1f s", epoch + 1, self.epochs, basis.n_rows,
                loss / basis.n_rows, state.planes.n_planes.sum(), time.perf_counter() - started,
            )  # fmt: skip
        self.set_state(basis, state, mean if self.average else None)
        return self

    def make_pass(self, state: Any, rows: Any, rankings: np.ndarray, order: np.ndarray) -> Any:
        """Train on rows in an order, going on from what an earlier pass returned, and become fitted."""
        assert self.n_categories is not None
        if state is None:
            basis = self._basis_of_blocks([(rows, rankings)], self.n_categories)
            state = basis, PlusState.empty(basis)
        basis, sums = state
        check_n_features(rows, basis.n_features)
        prepared = prepare_plus_rows(rows, basis.memberships.kernel_form(), basis.own.cells(basis.n_columns))
        train_plus_block(sums, prepared, rankings, order, tied=None, **self.block_options(basis))
        self.set_state(basis, sums, None)
        return state

    def _basis_of_blocks(self, blocks: Blocks, n_categories: int) -> PlusBasis:
        """Check and count all blocks, and make what is fixed before the first step."""
        counts, n_features, n_values = None, None, 0
        labelled: list[np.ndarray] = []
        for number in range(len(blocks)):
            X, rankings, *tied = blocks[number]
            X, rankings = as_csr(X), as_codes(rankings)
            check_rankings(rankings, n_rows=X.shape[0], n_categories=n_categories)
            n_features = X.shape[1] if n_features is None else n_features
            check_n_features(X, n_features)
            found = count_rankings(rankings, n_categories, tied[0] if tied else None)
            counts = found if counts is None else counts + found
            labelled.append(np.any(rankings >= 0, axis=1))
            n_values += int(np.diff(X.indptr)[labelled[-1]].sum())
        if counts is None or n_features is None or not counts.n_rows:
            raise ValueError(NO_CATEGORY)
        sample = sample_rows(
            labelled, lambda block: as_csr(blocks[block][0]), n_rows=counts.n_rows, n_values=n_values,
            n_centers=self.n_centers, seed=self.seed,
        )  # fmt: skip
        return make_basis(counts, sample, self.own_term(n_features, n_categories), **self.basis_options())

    def parameters_of_names(
        self, X: Any, columns: Sequence[str] | None, categories: Sequence[str] | None
    ) -> dict[str, Any]:
        """Return the parameters that follow from the names: which columns are a category's own, too."""
        chosen = super().parameters_of_names(X, columns, categories)
        if columns is None or categories is None or self.own_columns is not None:
            return chosen
        own = own_columns_of_names(columns, categories)
        return chosen if own is None else {**chosen, "own_columns": own[0].tolist(), "own_groups": own[1]}

    def own_term(self, n_features: int, n_categories: int) -> OwnTerm:
        """Return the own term of the parameters, nothing learned."""
        if self.own_columns is None:
            return OwnTerm.nothing(n_categories)
        return check_own_columns(self.own_columns, self.own_groups, n_features=n_features, n_categories=n_categories)

    def basis_options(self) -> dict[str, Any]:
        """Return the keywords of `make_basis` that follow from the parameters."""
        names = ("max_planes", "clickers_per_plane", "n_clusterings", "n_centers", "geometry", "seed")
        return {name: getattr(self, name) for name in names}

    def clustering_settings(self, counts: RankingCounts, start: Memberships | None = None) -> ClusteringSettings:
        """Return how rows are clustered, as follows from the parameters and what the rows rank."""
        geometry = geometry_of(counts, self.geometry)
        return ClusteringSettings(counts.n_rows, self.n_clusterings, self.n_centers, geometry, self.seed, start)

    def block_options(self, basis: PlusBasis, shards: int = 1) -> dict[str, Any]:
        """Return the keywords of `train_plus_block` that follow from the parameters and the number of shards."""
        rates = rates_of(basis, shards, self.pace)
        return {"basis": basis, "regularization": self.kappa / basis.n_rows, "rates": rates, "bias": self.bias}

    def add_to_mean(self, mean: PlusMean, state: PlusState, options: dict[str, Any]) -> None:
        """Count the model as it is now into a mean of models."""
        weights = state.weights(options["regularization"], options["rates"].planes)
        mean.add(weights, state.planes.plane_id, state.own_weights(options["rates"].own))

    def set_state(
        self, basis: PlusBasis, state: PlusState, mean: PlusMean | None, *, shards: int = 1, moment: int = 0
    ) -> None:
        """Become fitted with the last model of a training in so many shards, or with the mean, as of a moment."""
        if mean is None:
            rates = rates_of(basis, shards, self.pace)
            weights, own = state.weights(self.kappa / basis.n_rows, rates.planes), state.own_weights(rates.own)
        else:
            weights, own = mean.weights(), mean.own_weights()
        category = state.planes.plane_category[: weights.shape[1]]
        basis = basis.at(moment, own)
        self.set_planes(
            basis, weights, category, basis.own.weights, n_steps=state.planes.step - 1, squares=state.squares,
            own_squares=state.own_squares[: len(basis.own.weights)],
        )  # fmt: skip

    def set_planes(
        self,
        basis: PlusBasis,
        weights: np.ndarray,
        plane_category: np.ndarray,
        own_weights: np.ndarray,
        *,
        n_steps: int,
        squares: np.ndarray,
        own_squares: np.ndarray,
    ) -> None:
        """Become fitted with planes in any order, as `AMMRank.set_planes` does."""
        by_category = np.argsort(plane_category, kind="stable")
        self.basis_ = replace(basis, own=basis.own.with_weights(own_weights))
        self.weights_ = np.take(weights, by_category, axis=1)
        self.plane_category_ = plane_category[by_category]
        self.popularity_ = basis.clicks
        self.n_features_in_ = basis.n_features
        self.squares_, self.own_squares_, self.n_steps_ = squares, own_squares, n_steps
        self.categories_, self.columns_, self.variant_, self.training_ = None, None, None, None

    def decision_function(self, X: Rows) -> np.ndarray:
        """Return the scores, (n, n_categories) float32, all finite."""
        if is_collection(X):
            return self.call_by_block(X, "decision_function", self.n_categories_, np.float32)
        _, _, everything = top_categories(self.check_rows(X), self.panels(), 1, keep_all=True)
        return np.ascontiguousarray(everything.T)

    def panels(self) -> PlusPanels:
        """Return the model as the fused scoring kernel reads it."""
        self.check_fitted()
        return arrange_plus(self.basis_, self.weights_, self.plane_category_, self.tie_order_, self.bias)

    def explain(self, x: Rows) -> list[PlusScore]:
        """Return for each category, best first, its score and the prior, own term, plane and memberships it is made of.

        Parameters
        ----------
        x
            One row: (d,) or (1, d), dense or CSR.
        """
        row = self.check_row(x)
        return explain_plus_row(row, self.basis_, self.weights_, self.plane_category_, self.bias, self.predict(row)[0])

    def learned(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return everything learned as named arrays, and what JSON keeps of it."""
        arrays, attributes = basis_arrays(self.basis_)
        learned = {
            "weights": self.weights_,
            "plane_category": self.plane_category_,
            "squares": self.squares_,
            "own_squares": self.own_squares_,
        }
        return {**learned, **arrays}, attributes

    def set_learned(self, arrays: dict[str, np.ndarray], attributes: dict[str, Any]) -> None:
        """Become fitted with planes, prior, own term and clusterings that were saved."""
        basis = basis_from(arrays, attributes)
        self.set_planes(
            basis, arrays["weights"], arrays["plane_category"], basis.own.weights, n_steps=attributes["n_steps"],
            squares=arrays["squares"], own_squares=arrays["own_squares"],
        )  # fmt: skip

    def digest(self) -> str:
        """Return a hash of everything learned, the parameters and the names."""
        self.check_fitted()
        arrays, about = self.learned()
        names = [self.method, self.json_parameters(), about, self.categories_, self.columns_, self.variant_]
        hashes = {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in arrays.items()}
        return digest_of([*names, hashes])

    def check_parameters(self) -> None:
        """Refuse parameters that no training can have."""
        for name in ("kappa", "pace"):
            finite_number(name, getattr(self, name), above=0)
        for name in ("epochs", "max_planes", "clickers_per_plane", "n_categories", "n_centers"):
            value = getattr(self, name)
            if value is not None or name not in ("n_categories", "n_centers"):
                whole_number(name, value, least=1)
        whole_number("n_clusterings", self.n_clusterings, least=0)
        if self.geometry not in (None, *GEOMETRIES):
            raise ValueError(f"geometry must be one of {', '.join(GEOMETRIES)}, or None, got {self.geometry}")
        if self.own_groups is not None and self.own_columns is None:
            raise ValueError("own_groups must come with own_columns, got no columns")
        finite_number("bias", self.bias)
        whole_number("seed", self.seed, least=0)


class _PreparedBlocks:
    """Blocks in the form of training; each is made when it is asked for, and kept while there are not too many."""

    def __init__(self, blocks: Blocks, basis: PlusBasis) -> None:
        self._blocks = blocks
        self._centers, self._own = basis.memberships.kernel_form(), basis.own.cells(basis.n_columns)
        self._kept: dict[int, tuple[PlusRows, np.ndarray, np.ndarray | None]] = {}
        self._kept_bytes = 0

    def __getitem__(self, block: int) -> tuple[PlusRows, np.ndarray, np.ndarray | None]:
        if block not in self._kept:
            X, rankings, *tied = self._blocks[block]
            rows = prepare_plus_rows(as_csr(X), self._centers, self._own)
            prepared = (rows, np.asarray(rankings), tied[0] if tied else None)
            if self._kept_bytes + rows.n_bytes > _KEPT_BYTES:
                return prepared
            self._kept[block] = prepared
            self._kept_bytes += rows.n_bytes
        return self._kept[block]


def arrange_plus(
    basis: PlusBasis, weights: np.ndarray, plane_category: np.ndarray, tie_order: np.ndarray, bias: float
) -> PlusPanels:
    """Return a model of AMM-rank-plus as the kernel reads it; parameters are those of `arrange_planes`."""
    n_features = basis.n_features
    of_store = np.concatenate([weights[:n_features], weights[-1:]])
    planes = arrange_planes(of_store, plane_category, tie_order, bias)
    order = order_planes(plane_category, len(tie_order))[1]
    n_planes = np.bincount(plane_category, minlength=len(tie_order))
    has_zero = (n_planes < basis.limit)[tie_order]
    return PlusPanels(
        planes._replace(bare=np.zeros(0, np.int64)),
        cut_into_panels(weights[n_features:-1][:, order]),
        basis.prior[tie_order],
        np.where(has_zero[planes.place_of_slot], 0.0, -np.inf).astype(np.float32),
        _own_pieces(basis.own, basis.prior, n_features, tie_order),
        basis.memberships.kernel_form(),
    )


def _own_pieces(own: OwnTerm, prior: np.ndarray, n_features: int, tie_order: np.ndarray) -> OwnPieces:
    """Return the own term as the kernel reads it: of each kind β, and the hats as straight lines between the knots."""
    cells = own.cells(n_features)
    place_of = np.empty(len(tie_order), np.int64)
    place_of[tie_order] = np.arange(len(tie_order))
    n_kinds, most = own.n_kinds, own.knots.shape[1]
    counts = np.arange(most) < own.n_knots[:n_kinds, None]
    knots = np.where(counts, own.knots[:n_kinds], np.inf).astype(np.float32)
    pieces = np.zeros((n_kinds, most + 1, 3), np.float32)
    for kind, n in enumerate(own.n_knots[:n_kinds]):
        if not n:
            continue
        heights = HAT_SCALE * own.weights[kind, 1 : n + 1].astype(np.float64)
        at = own.knots[kind, :n].astype(np.float64)
        # Below the first knot and from the last one on a hat is flat.
        pieces[kind, 0, 1] = heights[0]
        pieces[kind, 1 : n + 1, 0], pieces[kind, 1 : n + 1, 1] = at, heights
        pieces[kind, 1:n, 2] = np.diff(heights) / np.diff(at)
    place = np.where(cells.category >= 0, place_of[cells.category], -1)
    lift = np.where(cells.kind == 0, own.lifts(prior)[cells.category], 0.0).astype(np.float32)
    return OwnPieces(cells.kind, place, own.group, own.weights[:n_kinds, 0].copy(), knots, pieces, lift)
