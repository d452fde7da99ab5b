"""fit_arrays: a fit of numpy arrays in this process. All other engines must agree with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from onebit_spark.certificate.certificates import Certificate, certificate_document
from onebit_spark.certificate.certified_fit import CertifiedFit, certified_fit
from onebit_spark.certificate.held_out import Group, HeldOutCounts, held_out_certificates, request_problems
from onebit_spark.certificate.learnt_prior import NARROWING
from onebit_spark.core import prediction
from onebit_spark.core.array_input import checked_ratings, label_problems
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.config import FitConfig, Terms
from onebit_spark.core.engine import prior_rows
from onebit_spark.core.execution import Execution, device_problems
from onebit_spark.core.factor_tables import prior_row
from onebit_spark.core.fitted_features import Who
from onebit_spark.core.hyper_posterior import HyperPosterior
from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.model_info import ModelInfo
from onebit_spark.core.model_selection import at_start_rank
from onebit_spark.core.posterior import DoubleArray, RowPosterior, effective_rank
from onebit_spark.core.prediction import EVERYTHING, ConfidenceThresholds
from onebit_spark.core.priors import ScalePrior
from onebit_spark.core.randomness import pair_streams
from onebit_spark.core.side_features import FeatureCoding, SideFeatures
from onebit_spark.core.solver import Iteration
from onebit_spark.engines.cuda.runner import CudaEngine
from onebit_spark.engines.threads import LocalEngine
from onebit_spark.predictor.fit_info import info_of_fit
from onebit_spark.predictor.predictor import ColdStartDraws, Predictor, moments_at
from onebit_spark.predictor.side import ModelSide, stacked
from onebit_spark.predictor.top_n import Numbers

if TYPE_CHECKING:
    from onebit_spark.predictor.served_model import ServedModel


@dataclass(frozen=True)
class Fit:
    """A fitted model. ``fit_arrays`` makes it.

    Parameters
    ----------
    config : FitConfig
        The settings, with the κ that was used.
    info : ModelInfo
        Settings, counts and history of the fit: the ``metadata.json`` of its model.
    rows, cols : RowPosterior
        Posterior of the rows and of the columns.
    scales : HyperPosterior
        q(γ) and q(μ).
    history : list of Iteration
        One entry per iteration.
    converged : bool
        Whether the stopping rule held (docs/MATH.md, §7.4).
    reason : str
        Why the fit stopped.
    majority : {1, −1}
        The more frequent label; 1 in a tie.
    prior : ScalePrior
        π^γ with the α and β that were used.
    rated : dict of side to array of bool
        Which rows and columns have ratings.
    certificates : list of Certificate
        What was certified, if ``fit_arrays`` was asked for it.
    drawn : dict of side to RowPosterior, optional
        After a prior split: the posterior that ``sample`` draws from.
    confidence_thresholds : ConfidenceThresholds
        Thresholds of the confidence, from the fitted ratings.
    weight_losses : dict of float to float
        If κ was chosen: each κ that was tried, with its loss on a tenth of the ratings.
    codings : dict of side to FeatureCoding
        How side features became numbers. Their weights W are in ``scales.features``.

    Notes
    -----
    ``rows`` and ``cols`` in the methods are indices, one per pair; they are broadcast against each other. An index
    without ratings, or outside the shape, is predicted from the prior (§8.2).
    """

    config: FitConfig
    info: ModelInfo = field(repr=False)
    rows: RowPosterior
    cols: RowPosterior
    scales: HyperPosterior = field(repr=False)
    history: list[Iteration] = field(repr=False)
    converged: bool
    reason: str
    majority: int
    prior: ScalePrior = field(repr=False)
    rated: dict[Side, NDArray[np.bool_]] = field(repr=False)
    certificates: list[Certificate] = field(default_factory=list, repr=False)
    drawn: dict[Side, RowPosterior] | None = field(default=None, repr=False)
    confidence_thresholds: ConfidenceThresholds = field(default=EVERYTHING, repr=False)
    weight_losses: dict[float, float] = field(default_factory=dict, repr=False)
    codings: dict[Side, FeatureCoding] = field(default_factory=dict, repr=False)

    @property
    def objective_history(self) -> list[float]:
        """λ·AVB (hinge) or −ELBO (logistic) after each iteration. It is minimised."""
        return [iteration.objective for iteration in self.history]

    @property
    def inverse_gamma(self) -> NDArray[np.float64]:
        """g_k = E[1/γ_k] of the K factors. It is large where a factor was switched off."""
        return self.scales.factor

    @property
    def effective_rank(self) -> int:
        """Number of factors in use (§8.5)."""
        return effective_rank(
            self.rows.column_norms, self.cols.column_norms, *(int(self.rated[side].sum()) for side in SIDES)
        )

    def score(self, rows: ArrayLike, cols: ArrayLike) -> DoubleArray:
        """Posterior mean of the score, E[b_i] + E[d_j] + E[L_i]·E[R_j] (§8.1)."""
        row, col = self._positions(rows, cols)
        return prediction.score(self._lines["rows"].take(row), self._lines["cols"].take(col))

    def std(self, rows: ArrayLike, cols: ArrayLike) -> DoubleArray:
        """Spread of the score: the standard deviation of an approximate posterior, which depends on the rank and on κ.

        It compares pairs of one model. It is no error bar (docs/predictions.md, Std).
        """
        return np.sqrt(self._moments(rows, cols)[1])

    def probability(self, rows: ArrayLike, cols: ArrayLike) -> DoubleArray:
        """P(+). Its meaning depends on the loss (§8.1)."""
        return self._predictor.probability(*self._moments(rows, cols))

    def predict(self, rows: ArrayLike, cols: ArrayLike) -> NDArray[np.int8]:
        """The sign of the score, ±1. A score of exactly 0 gets the majority label."""
        return self._predictor.label(self.score(rows, cols)).astype(np.int8)

    def confidence(self, rows: ArrayLike, cols: ArrayLike) -> DoubleArray:
        """|score|/√(c + variance): how sure the model is of the sign (§10.1)."""
        score, variance = self._moments(rows, cols)
        return self._predictor.confidence(score, np.sqrt(variance))

    def sample(self, rows: ArrayLike, cols: ArrayLike, seed: int = 0) -> DoubleArray:
        """One random draw of the score per pair. Its sign is the predictor of the certificates for draws (§9.4).

        A draw is a function of the seed, the row and the column. After a prior split the draws have smaller standard
        deviations than ``std``. Rows and columns without ratings are drawn from the prior.
        """
        index = np.broadcast_arrays(np.atleast_1d(rows), np.atleast_1d(cols))
        states = pair_streams(seed, *(np.ascontiguousarray(numbers, np.int64) for numbers in index))
        (left, unrated_left), (right, unrated_right) = map(self._drawn_lines, SIDES, index)
        return self._predictor.draws.sampled_scores(left, right, (unrated_left, unrated_right), states)

    def _drawn_lines(self, side: Side, index: NDArray[Any]) -> tuple[RowPosterior, NDArray[np.bool_]]:
        """The posterior at these rows or columns, and which of them are drawn from the prior instead.

        After a prior split, the lines without ratings already contain the learnt prior.
        """
        posterior = (self.drawn or {"rows": self.rows, "cols": self.cols})[side]
        unknown = (index < 0) | (index >= posterior.n_rows)
        known = np.where(unknown, 0, index).astype(np.int64)
        return posterior.take(known), unknown if self.drawn else unknown | ~self.rated[side][known]

    @cached_property
    def _predictor(self) -> Predictor:
        draws = ColdStartDraws(self.scales, self.prior, NARROWING if self.drawn else None)
        form = self.rows.kind, self.config.intercepts
        return Predictor(self.config.loss, *form, draws, self.majority, calibration=self.info.calibrated)

    @cached_property
    def _lines(self) -> dict[Side, RowPosterior]:
        """The posterior of each side, and the prior as one more, last row."""
        sides: dict[Side, RowPosterior] = {"rows": self.rows, "cols": self.cols}
        return {
            side: stacked(posterior, prior_rows(self.scales.unseen(side), 1, posterior))
            for side, posterior in ((side, replace(lines, implicit=None)) for side, lines in sides.items())
        }

    def _moments(self, rows: ArrayLike, cols: ArrayLike) -> tuple[DoubleArray, DoubleArray]:
        """Score and variance."""
        return moments_at(self._lines["rows"], self._lines["cols"], *self._positions(rows, cols))

    def _positions(self, rows: ArrayLike, cols: ArrayLike) -> tuple[Numbers, Numbers]:
        """One row and one column per pair; −1, the prior's row, outside the shape."""
        row, col = np.broadcast_arrays(np.atleast_1d(rows), np.atleast_1d(cols))
        row = np.where((row < 0) | (row >= self.rows.n_rows), -1, row).astype(np.int64)
        return row, np.where((col < 0) | (col >= self.cols.n_rows), -1, col).astype(np.int64)

    # ---- as a model --------------------------------------------------------------------------------------------------

    @cached_property
    def served(self) -> ServedModel:
        """This fit as ``onebit_spark.load`` gives it: user i is row i, and item j is column j.

        It knows the rows and columns that have ratings or side features.
        """
        from onebit_spark.predictor.served_model import ServedModel  # imports Parquet, which few Python workers need

        users, items = self._side("rows"), self._side("cols")
        info = replace(self.info, n_users=len(users.ids), n_items=len(items.ids))
        return ServedModel(info, users, items, certificate_document(item.as_dict() for item in self.certificates))

    def _side(self, side: Side) -> ModelSide:
        numbers = np.arange(len(self.rated[side])) if side in self.codings else np.flatnonzero(self.rated[side])
        rows = (self.rows if side == "rows" else self.cols).take(numbers).astype("float32")
        drawn = None if self.drawn is None else self.drawn[side].take(numbers).astype("float32")
        prior = prior_row(self.scales, side, *self.info.table_form)
        return ModelSide(pa.array(numbers), stacked(rows, prior), drawn)

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write a model folder, for ``onebit_spark.load`` and ``OneBitCompletionModel.load``: see ``ServedModel.save``.

        The ids are the numbers of the rows and columns.
        """
        self.served.save(path, overwrite)

    def recommend(self, ids: Any = None, n: int = 10, who: Who = "user", **choices: Any) -> pa.Table:
        """The best columns of rows (``who`` = "user"), or the best rows of columns: see ``ServedModel.recommend``."""
        return self.served.recommend(ids, n, who, **choices)

    def fold_in(
        self, rows: ArrayLike, cols: ArrayLike, labels: ArrayLike, who: Who = "user", **choices: Any
    ) -> ServedModel:
        """A model that also knows these rows (or columns), without a refit: see ``ServedModel.fold_in``."""
        return self.served.fold_in(rows, cols, labels, who, **choices)

    # ---- certificates ------------------------------------------------------------------------------------------------

    def certify(
        self, rows: ArrayLike, cols: ArrayLike, labels: ArrayLike, terms: Terms | None = None,
        max_error: Sequence[float] = (), groups: ArrayLike | None = None,
    ) -> list[Certificate]:  # fmt: skip
        """Certify the predictions on held-out ratings: ``holdout``, and ``selective`` for each request.

        Parameters
        ----------
        rows, cols, labels : array_like
            Ratings that were not fitted.
        terms : Terms, optional
            δ, and the number of settings that were compared.
        max_error : sequence of float
            Requested error rates among the answered pairs (§10).
        groups : array_like, optional
            One value per rating. Certify within each group as well; the groups share δ.

        Returns
        -------
        list of Certificate
        """
        terms = terms or Terms()
        problems = [str(problem) for problem in terms.problems()] + [
            f"max_error {problem}" for problem in request_problems(max_error)
        ]
        problems += label_problems(np.asarray(labels))
        if problems:
            raise ValueError("; ".join(problems))
        positive, predicted = np.asarray(labels) > 0, self.predict(rows, cols) > 0
        values = () if groups is None else np.unique(np.asarray(groups))
        counts = HeldOutCounts.of(
            self.confidence_thresholds, self.confidence_thresholds.level(self.confidence(rows, cols)), 1,
            predicted != positive, positive != (self.majority > 0),
            ((Group("group", str(value)), np.asarray(groups) == value) for value in values),
        )  # fmt: skip
        return held_out_certificates(self.confidence_thresholds, counts, terms, max_error)

    def answered(self, rows: ArrayLike, cols: ArrayLike, certificate: Certificate) -> NDArray[np.bool_]:
        """Which pairs the model answers under a selective certificate; none if its request could not be met."""
        threshold = certificate.inputs["threshold"]
        return self.confidence(rows, cols) >= (np.inf if threshold is None else threshold)


def fit_arrays(
    rows: ArrayLike,
    cols: ArrayLike,
    labels: ArrayLike,
    config: FitConfig | None = None,
    shape: tuple[int, int] | None = None,
    *,
    weights: ArrayLike | None = None,
    threads: int | None = None,
    device: str = "cpu",
    certify: Terms | None = None,
    on_iteration: Callable[[Iteration], None] | None = None,
    row_features: ArrayLike | pa.Table | None = None,
    col_features: ArrayLike | pa.Table | None = None,
) -> Fit:
    """Fit the ratings (rows[l], cols[l], labels[l]) in this process. A cell may be rated several times.

    Parameters
    ----------
    rows, cols : array_like of int
        Row and column of each rating, from 0 on.
    labels : array_like
        ±1, 0/1 or booleans.
    config : FitConfig, optional
        The settings.
    shape : (int, int), optional
        Numbers of rows and columns. Rows and columns without ratings do not change the fit.
    weights : array_like, optional
        A weight per rating, which multiplies κ (docs/MATH.md, §16). A rating of weight 0 is left out. Default: all 1.
    threads : int, optional
        Number of threads. Default: all cores.
    device : {"cpu", "cuda"}
        Where the fit runs. On a GPU it needs CuPy, and it is the same fit up to rounding (docs/SCALING.md).
    certify : Terms, optional
        Compute certificates on these terms.
    on_iteration : callable, optional
        Called after every iteration with an ``Iteration``.
    row_features, col_features : array_like of numbers or pyarrow.Table, optional
        Side features, one line per row or column of the shape (docs/MATH.md, §15). They are standardised; nan counts
        as the mean. A table may have columns of numbers, booleans, strings and arrays of them.

    Returns
    -------
    Fit

    Raises
    ------
    ValueError
        Lists all problems of the input and the settings.

    >>> from onebit_spark import FitConfig, fit_arrays
    >>> fit = fit_arrays([0, 0, 1, 1], [0, 1, 0, 1], [1, 1, 1, 0], FitConfig(rank=1, tol=0, max_iter=20))
    >>> fit.predict([0, 1], [0, 0]).tolist()
    [1, 1]
    """
    config = config or FitConfig()
    execution = Execution(device=device)
    settings = [*execution.problems(), *config.problems(), *(certify.problems() if certify else [])]
    settings = settings or device_problems(config, execution)
    ratings = rows, cols, labels, shape
    engine: LocalEngine | CudaEngine
    if device == "cuda":
        engine = CudaEngine.of_arrays(*ratings, settings, weights, at_start_rank(config).form)
    else:
        engine = LocalEngine(RatingBlock.from_coordinates(*checked_ratings(*ratings, settings, weights)), threads)
    positives = engine.positives
    with engine.running():
        for side, given in zip(SIDES, (row_features, col_features), strict=True):
            if given is not None:
                rated, name = engine.counts(side) > 0, f"{side[:-1]}_features"
                engine.features[side] = SideFeatures.of_rows(given, rated, name)
        fit = certified_fit(engine, config, certify, positives, on_iteration)
    majority = 1 if 2 * positives >= engine.n_ratings else -1
    return Fit(
        config=fit.choice.config,
        info=_info(fit, engine, positives, majority),
        rows=engine.runner.lines(fit.posterior["rows"]),
        cols=engine.runner.lines(fit.posterior["cols"]),
        scales=fit.scales,
        history=fit.history,
        converged=fit.converged,
        reason=fit.reason,
        majority=majority,
        prior=fit.prior,
        rated={side: engine.counts(side) > 0 for side in SIDES},
        certificates=fit.certificates,
        drawn=fit.drawn and {side: engine.runner.lines(lines) for side, lines in fit.drawn.items()},
        confidence_thresholds=fit.confidence_thresholds or EVERYTHING,
        weight_losses=fit.choice.losses,
        codings=fit.codings,
    )


def _info(fit: CertifiedFit[Any], engine: LocalEngine | CudaEngine, positives: int, majority: int) -> ModelInfo:
    """As if the fit had been made of a DataFrame with the columns user, item and label."""
    columns = {"user": "user", "item": "item", "label": "label"}
    return info_of_fit(
        fit,
        engine,
        engine.repeats,
        {side: int(np.count_nonzero(engine.counts(side) == 0)) for side in SIDES},
        n_ratings=engine.n_ratings,
        n_positive=positives,
        label_coding="signed",
        threshold=None,
        majority=majority,
        columns={**columns, "weight": "weight"} if engine.weighted else columns,
        total_weight=engine.total_weight if engine.weighted else None,
        id_types={"user": "bigint", "item": "bigint"},
    )
