"""A model without Spark: ``ModelInfo``, the content of ``metadata.json``; factor tables; and side
features by id.

One line of a factor table is one id with the posterior of its row, here with K = 2 factors and an
intercept::

    "spread"        id | mean [x1, x2] | spread [s1, s2]    | intercept b | intercept_spread s0
    "covariance"    id | mean [x1, x2] | covariance [v00, v10, v11, v20, v21, v22] | intercept b

The covariance is the lower triangle of V, row after row, over [b, x1, x2]: the intercept is first.
Without intercepts these columns are absent, and V is over the factors only. ``n_ratings`` counts
the ratings of the id, and ``position_std`` has the standard deviations of its position, or of its
intercept and slopes (``core.positions``). Checkpoints and updated models lack them. With implicit
features there is also ``implicit`` [w1, w2, r1, r2]: the weight and the residual
(``core.features``). A checkpoint has ``directions`` besides, the other vectors [z, d, s, q].
"""

from __future__ import annotations

import dataclasses
import json
import logging
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.core.calibration import Calibration
from onebit_spark.core.confidences import EVERYTHING, Call, ConfidenceThresholds
from onebit_spark.core.hyper_posterior import HyperPosterior, Moments
from onebit_spark.core.losses import OTHER, Side
from onebit_spark.core.positions import Axes
from onebit_spark.core.posterior import MODEL_VECTORS, DoubleArray, FloatArray, Kind, RowPosterior
from onebit_spark.core.priors import PRIORS, ScalePrior
from onebit_spark.core.setup import factor_prior, loss_of
from onebit_spark.data.features import (
    FeatureCoding,
    SideFeatures,
    SideTables,
    Table32,
    learn_coding,
)
from onebit_spark.data.id_index import IdIndex, Ids
from onebit_spark.data.user_tables import one_array, wide
from onebit_spark.errors import RequestError
from onebit_spark.records import Fields
from onebit_spark.settings import FORM_SETTINGS, FitConfig, Who

SIDE_OF: dict[Who, Side] = {"user": "rows", "item": "cols"}
PARTNER: dict[Who, Who] = {"user": "item", "item": "user"}

FORMAT_VERSION = 1
METADATA = "metadata.json"
# −1/1, 0/1, false/true, a number above a threshold
LABEL_CODINGS = (
    "signed",
    "binary",
    "boolean",
    "threshold",
)

CALIBRATION = {entry.name for entry in dataclasses.fields(Calibration)}
MOMENTS = {
    entry.name for entry in dataclasses.fields(Moments) if entry.default is dataclasses.MISSING
}
# Entry of ``intercept_prior`` ─► field of ``HyperPosterior``.
INTERCEPT_PRIOR = {
    "mean": "mean",
    "mean_variance": "mean_variance",
    "user_inverse_gamma": "row_intercept",
    "item_inverse_gamma": "col_intercept",
}


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """The content of ``metadata.json``, without ``format_version``."""

    parameters: Fields  # the fields of ``FitConfig``, with the κ, α and β that were used
    n_ratings: int  # numbers of ratings, of users with ratings and of items with ratings
    n_users: int
    n_items: int
    objective_history: list[float]  # The objective after each iteration. It is minimised.
    iterations: int  # number of iterations
    converged: bool  # whether the stopping rule held (docs/MATH.md, §7.4)
    reason: str  # why the fit stopped
    effective_rank: int  # factors in use (§8.5)
    inverse_gamma: list[float]  # g_k = E[1/γ_k] of each factor
    # ``mean`` m_μ, ``mean_variance`` v_μ, ``user_inverse_gamma`` E[1/γ_b], ``item_inverse_gamma``
    # E[1/γ_d]. None without intercepts, as the next field.
    intercept_prior: dict[str, float] | None
    intercept_scale_prior: dict[str, float] | None  # its α and β, of the scales of the intercepts
    label_coding: str  # how the labels of the input were coded
    threshold: float | None  # a label strictly above it is positive
    majority: int  # the more frequent label
    # names of the columns ``user``, ``item`` and ``label``, and ``weight`` if the fit was weighted
    columns: dict[str, str]
    id_types: dict[str, str]  # Spark's types of the ids of ``user`` and ``item``, such as bigint
    seconds: dict[str, float] = field(default_factory=dict)  # seconds of each phase of the fit
    n_positive: int = 0  # number of positive ratings
    repeats: dict[str, int]  # repeated ratings of a cell: see ``core.blocks``
    fingerprint: str = ""  # hash of the set of ratings: see ``data.ratings``
    # How factors travelled, and why this exchange was chosen
    exchange: dict[str, str] = field(default_factory=dict)
    calibration: Fields | None = None  # see ``prediction.Calibration``
    scale_moments: Fields  # what determines q(γ): see ``hyper_posterior.Moments``
    # Thresholds of the confidence, from the fitted ratings: see
    # ``prediction.ConfidenceThresholds``; those of z and −z under ``positive`` and ``negative``
    confidences: Fields | None = None
    weight_losses: dict[str, float] | None = (
        None  # if κ was chosen: the held-out loss of each κ that was tried
    )
    # If a tenth of the ratings chose the settings: how, see
    # ``model_selection.SelectedModel.as_dict``
    choice: Fields | None = None
    # For ``user`` and ``item``, if they have side features: ``coding``
    # (``features.FeatureCoding``), ``weights`` W (p × D), and the number of ``newcomers``, ids
    # without ratings
    side_features: dict[str, Fields] | None = None
    total_weight: float | None = None  # if the fit was weighted: the sum of the weights
    diagnostics: Fields | None = None  # figures for the report: see ``spark.scoring``
    fitted: Fields | None = None  # ``limit`` and ``complete`` of ``hashes.CellSketch``
    axes: Fields | None = None  # of positions: ``positions.Axes``

    def __post_init__(self) -> None:
        problems = self._problems()
        if problems:
            raise ValueError("; ".join(problems))

    @property
    def config(self) -> FitConfig:
        return FitConfig(**self.parameters)

    @property
    def kind(self) -> Kind:
        """How the factor tables store the uncertainty of a row: "spread" or "covariance"."""
        return loss_of(self.config).kind

    @property
    def table_form(self) -> tuple[Kind, bool, int]:
        """Kind, intercepts and vectors of implicit features: what the columns of the factor tables
        follow from.
        """
        return (
            self.kind,
            self.config.intercepts,
            MODEL_VECTORS if self.config.implicit_features else 0,
        )

    @property
    def negative_label(self) -> float:
        """The negative label in predictions. The positive one is 1."""
        return -1.0 if self.label_coding == "signed" else 0.0

    @property
    def scales(self) -> HyperPosterior:
        """q(γ), q(μ) and W.

        Unknown ids are predicted from them. The inverse of ``scale_fields``.
        """
        learned = self.side_features or {}
        own = self.intercept_scale_prior
        features: dict[Side, Any] = {
            side: np.asarray(learned[who]["weights"], np.float64)
            for who, side in SIDE_OF.items()
            if who in learned
        }
        return HyperPosterior(
            self.scale_prior,
            None if own is None else PRIORS[self.config.prior](**own),
            np.asarray(self.inverse_gamma, np.float64),
            moments=self.moments,
            features=features,
            **{
                INTERCEPT_PRIOR[name]: value for name, value in (self.intercept_prior or {}).items()
            },
        )

    def count(self, who: str) -> int:
        return self.n_users if who == "user" else self.n_items

    @property
    def rated(self) -> tuple[int, int]:
        """Numbers of users and of items without those that are known by their side features
        alone.
        """
        users, items = (
            (self.side_features or {}).get(who, {}).get("newcomers", 0) for who in ("user", "item")
        )
        return self.n_users - users, self.n_items - items

    @property
    def scale_prior(self) -> ScalePrior:
        return factor_prior(self.config, self.n_users + self.n_items)

    @property
    def moments(self) -> Moments:
        return Moments.from_dict(self.scale_moments)

    @property
    def calibrated(self) -> Calibration | None:
        return None if self.calibration is None else Calibration(**self.calibration)

    @property
    def position_axes(self) -> Axes | None:
        return None if self.axes is None else Axes.from_dict(self.axes)

    @property
    def thresholds(self) -> dict[Call, ConfidenceThresholds]:
        """The thresholds of every call for which the model has kept some, with the share of its
        class.
        """
        kept = self.confidences or EVERYTHING.as_dict()
        share = self.n_positive / self.n_ratings
        shares: dict[Call, float] = {"positive": share, "negative": 1 - share}
        found = {
            call: ConfidenceThresholds.from_dict(kept[call], shares[call])
            for call in shares
            if call in kept
        }
        return {"answered": ConfidenceThresholds.from_dict(kept), **found}

    def to_json(self) -> str:
        content = {"format_version": FORMAT_VERSION, **dataclasses.asdict(self)}
        return json.dumps(
            content,
            indent=2,
            ensure_ascii=False,
            allow_nan=False,
            default=lambda number: number.item(),
        )

    @classmethod
    def from_json(cls, text: str) -> ModelInfo:
        """The inverse of ``to_json``.

        Raises a RequestError if the text is not the metadata of a model.
        """
        try:
            content = json.loads(text)
        except ValueError as error:
            raise RequestError(f"damaged model folder: {METADATA} is not JSON ({error})") from None
        version = content.get("format_version") if isinstance(content, dict) else None
        if not isinstance(version, int):
            raise RequestError(f"damaged model folder: {METADATA} has no format_version")
        if version != FORMAT_VERSION:
            raise RequestError(
                f"the model has format_version {version}, and this onebit_spark reads "
                f"{FORMAT_VERSION} only: load it "
                "with the onebit_spark that saved it, or fit it again"
            )
        missing = [name for name in _TYPES if name not in content]
        if missing:
            raise RequestError(f"damaged model folder: {METADATA} lacks {', '.join(missing)}")
        try:
            return cls(**{name: content[name] for name in _TYPES})
        except ValueError as error:
            raise RequestError(f"damaged model folder: {METADATA}: {error}") from None

    def _problems(self) -> list[str]:
        """All problems, each group only if the fields that it reads are right."""
        wrong = [
            name for name, kinds in _TYPES.items() if not isinstance(getattr(self, name), kinds)
        ]
        if wrong:
            return [f"{name} cannot be {getattr(self, name)!r}" for name in wrong]
        known = {entry.name for entry in dataclasses.fields(FitConfig)}
        held = set(self.parameters)
        if not set(FORM_SETTINGS) <= held <= known:
            return [
                f"parameters lack {sorted(set(FORM_SETTINGS) - held)} or hold the unknown "
                f"{sorted(held - known)}"
            ]
        return [str(problem) for problem in self.config.problems()] or list(self._wrong_values())

    def _wrong_values(self) -> Iterator[str]:
        config = self.config
        if len(self.inverse_gamma) != config.rank:
            yield f"inverse_gamma has {len(self.inverse_gamma)} entries for rank {config.rank}"
        for name, needed in (
            ("intercept_prior", set(INTERCEPT_PRIOR)),
            ("intercept_scale_prior", {"alpha", "beta"}),
        ):
            value = getattr(self, name)
            if set(value or ()) != (needed if config.intercepts else set()):
                yield f"{name} cannot be {value} with intercepts={config.intercepts}"
        if self.label_coding not in LABEL_CODINGS:
            yield (
                f"label_coding must be one of {', '.join(LABEL_CODINGS)}, not {self.label_coding!r}"
            )
        if self.majority not in (-1, 1):
            yield f"majority must be 1 or −1, not {self.majority}"
        if self.confidences is not None:
            try:
                _ = self.thresholds
            except (LookupError, TypeError, ValueError) as error:
                yield f"confidences are not valid: {error}"
        for name, needed, more in (
            ("calibration", CALIBRATION, False),
            ("scale_moments", MOMENTS, True),
            ("fitted", {"limit", "complete"}, False),
            ("columns", {"user", "item", "label"}, True),
            ("id_types", {"user", "item"}, True),
        ):
            value = getattr(self, name)
            if value is not None and not (set(value) >= needed if more else set(value) == needed):
                yield f"{name} must hold {', '.join(sorted(needed))}, not {value}"


def scale_fields(scales: HyperPosterior) -> Fields:
    """The fields of ``ModelInfo`` that hold q(γ) and q(μ)."""
    names = INTERCEPT_PRIOR.items()
    own = scales.intercept_prior
    moments = scales.moments
    assert moments is not None, "q(γ) is known once the first γ step is done"
    return {
        "inverse_gamma": np.asarray(scales.factor).tolist(),
        "intercept_prior": None
        if own is None
        else {name: getattr(scales, held) for name, held in names},
        "intercept_scale_prior": None if own is None else dict(vars(own)),
        "scale_moments": moments.as_dict(),
    }


def _accepted(hint: Any) -> tuple[type, ...]:
    """The types of JSON's values for a field: an integer is also a float."""
    kinds = tuple(
        get_origin(part) or part
        for part in (get_args(hint) if isinstance(hint, UnionType) else (hint,))
    )
    return (*kinds, int) if float in kinds else kinds


_TYPES = {name: _accepted(hint) for name, hint in get_type_hints(ModelInfo).items()}


# ---- factor tables -----------------------------------------------------------------------------

log = logging.getLogger("onebit_spark")

IMPLICIT = "implicit"
DIRECTIONS = "directions"
N_RATINGS = "n_ratings"
POSITION_STD = "position_std"
MEASURED = {N_RATINGS: "bigint", POSITION_STD: "array<float>"}


def factor_columns(kind: Kind, intercepts: bool, vectors: int = 0) -> dict[str, str]:
    """The columns of a factor table after ``id``, with their Spark types.

    Scores do not need ``implicit``.
    """
    columns = {"mean": "array<float>", kind: "array<float>"}
    if intercepts:
        columns["intercept"] = "float"
        if kind == "spread":
            columns["intercept_spread"] = "float"
    if vectors:
        columns[IMPLICIT] = "array<float>"
    return columns


def plain_columns(info: ModelInfo, present: Collection[str]) -> list[str]:
    """The columns of a finished fit, in a factor table with these columns."""
    return [*factor_columns(*info.table_form), *(name for name in MEASURED if name in present)]


def factor_table(
    ids: pa.Array,
    posterior: RowPosterior,
    measured: FloatArray | None = None,
) -> pa.Table:
    """The factor table of one side: ``ids[i]`` belongs to row i.

    ``measured`` are the numbers of ``core.work.MeasureSpreads``.
    """
    first = int(posterior.has_intercept)
    spread = posterior.kind == "spread"
    columns = {
        "id": ids,
        "mean": _lists(posterior.mean),
        posterior.kind: _lists(posterior.scale[:, first:] if spread else posterior.scale),
    }
    if first:
        columns["intercept"] = pa.array(posterior.location[:, 0].astype(np.float32))
        if spread:
            columns["intercept_spread"] = pa.array(posterior.scale[:, 0].astype(np.float32))
    if posterior.implicit is not None:
        kept = MODEL_VECTORS * posterior.rank
        columns[IMPLICIT] = _lists(posterior.implicit[:, :kept])
        if posterior.vectors > MODEL_VECTORS:
            columns[DIRECTIONS] = _lists(posterior.implicit[:, kept:])
    if measured is not None:
        columns[N_RATINGS] = pa.array(measured[:, 0].astype(np.int64))
        columns[POSITION_STD] = _lists(measured[:, 1:])
    return pa.table(columns)


def side_table(
    ids: pa.Array,
    rows: RowPosterior,
    measured: FloatArray | None,
    newcomers: pa.Table | None,
) -> pa.Table:
    """The factor table of a side, with the lines of ``newcomers``, ids without ratings."""
    table = factor_table(ids, rows, measured)
    return table if newcomers is None else pa.concat_tables([table, newcomers.cast(table.schema)])


def plain_lists(table: pa.Table) -> pa.Table:
    """The table with lists of variable size: Spark accepts no others from a worker."""
    lists = pa.list_(pa.float32())
    fields = (
        each.with_type(lists) if pa.types.is_fixed_size_list(each.type) else each
        for each in table.schema
    )
    return table.cast(pa.schema(fields))


def read_factors(lines: pa.StructArray, prior: RowPosterior) -> RowPosterior:
    """The posterior of every line of a factor table (without ``id``).

    A null line gets the one row of ``prior``.

    It has as many vectors in ``implicit`` as ``prior``; those that the table lacks are 0.
    """
    known = lines.is_valid().to_numpy(zero_copy_only=False)
    present = lines.drop_null()
    location = np.repeat(prior.location, len(lines), axis=0)
    scale = np.repeat(prior.scale, len(lines), axis=0)
    first = int(prior.has_intercept)
    location[known, first:] = _rectangle(present.field("mean"), prior.dimension - first)
    if first:
        location[known, 0] = present.field("intercept").to_numpy(zero_copy_only=False)
    first = int(prior.has_intercept and prior.kind == "spread")
    scale[known, first:] = _rectangle(present.field(prior.kind), scale.shape[1] - first)
    if first:
        scale[known, 0] = present.field("intercept_spread").to_numpy(zero_copy_only=False)
    implicit = None
    if prior.implicit is not None:
        kept = MODEL_VECTORS * prior.rank
        implicit = np.zeros((len(lines), prior.implicit.shape[1]), prior.implicit.dtype)
        implicit[known, :kept] = _rectangle(present.field(IMPLICIT), kept)
        if prior.vectors > MODEL_VECTORS and DIRECTIONS in [field.name for field in lines.type]:
            implicit[known, kept:] = _rectangle(present.field(DIRECTIONS), implicit.shape[1] - kept)
    return RowPosterior(location, scale, prior.kind, prior.has_intercept, implicit)


def align_factors(
    factors: pa.Table, ids: pa.Array, prior: RowPosterior, precision: str
) -> RowPosterior:
    """The posterior of ``ids`` from a factor table in any order.

    Ids that it lacks get the one row of ``prior``.
    """
    known = factors["id"].type
    if wide(known) != wide(ids.type) and not (
        pa.types.is_integer(known) and pa.types.is_integer(ids.type)
    ):
        raise RequestError(
            f"the initial model's ids are of type {known}, those of the ratings {ids.type}"
        )
    places = IdIndex(factors["id"]).find(ids)
    lines = one_array(factors.drop_columns("id").to_struct_array())
    return read_factors(lines.take(pa.array(places, mask=places < 0)), prior).astype(precision)


def read_measured(table: pa.Table) -> FloatArray | None:
    """The numbers of ``core.work.MeasureSpreads`` from a factor table; None if it lacks them."""
    if N_RATINGS not in table.column_names:
        return None
    std = one_array(table[POSITION_STD])
    counts = table[N_RATINGS].to_numpy().astype(np.float32)
    return np.column_stack([counts, _rectangle(std, len(std[0]) if len(std) else 0)])


def prior_row(
    scales: HyperPosterior,
    side: Side,
    kind: Kind,
    intercepts: bool,
    vectors: int = 0,
    precision: str = "float32",
) -> RowPosterior:
    """The prior of an id that was never rated, as a posterior of one row (docs/MATH.md, §8.2).

    ``vectors`` is their number in ``implicit``.
    """
    prior = scales.unseen(side)
    mean = prior.mean.astype(precision)
    row = RowPosterior.isotropic(mean, 1.0 / np.sqrt(prior.precision[0]), kind, intercepts)
    return row.with_implicit(vectors) if vectors else row


def newcomer_rows(row: RowPosterior, known: DoubleArray) -> RowPosterior:
    """Ids without ratings whose features explain the means ``known`` (rows × D), beside those of
    ``row``.
    """
    rows = row.take(np.zeros(len(known), np.int64))
    rows.location[:] += known
    return rows


def _lists(table: FloatArray) -> pa.FixedSizeListArray:
    values = np.ascontiguousarray(table, np.float32)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def _rectangle(lists: pa.ListArray, width: int) -> FloatArray:
    return lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), width)


# ---- side features by id -----------------------------------------------------------------------


@dataclass(frozen=True)
class IdLines:
    """One line of numbers per id, such as side features or the prior means that they explain."""

    ids: pa.Array  # different ids
    lines: DoubleArray  # ``lines[i]`` belongs to ``ids[i]``

    def __len__(self) -> int:
        return len(self.ids)

    def at(self, ids: pa.Array) -> DoubleArray:
        places = IdIndex(self.ids).find(ids)
        lines = np.zeros((len(ids), self.lines.shape[1]), self.lines.dtype)
        lines[places >= 0] = self.lines[places[places >= 0]]
        return lines


def coding_of(info: ModelInfo, who: Who) -> FeatureCoding:
    learned = (info.side_features or {}).get(who)
    if learned is None:
        raise RequestError(f"the model was fitted without {who} features")
    return FeatureCoding.from_list(learned["coding"])


def feature_means(info: ModelInfo, who: Who, coded: Table32) -> NDArray[np.float64]:
    """Wᵀf of coded lines (rows × D)."""
    return np.asarray(coded @ info.scales.features[SIDE_OF[who]])


def feature_effects(info: ModelInfo, who: Who) -> list[tuple[str, float, float, list[float]]]:
    """Each feature, and its effects as ``OneBitCompletionModel.userFeatureWeights``
    explains them.
    """
    coding = coding_of(info, who)
    side = SIDE_OF[who]
    intercepts = info.config.intercepts
    rank = info.config.factors
    partner = info.scales.unseen(OTHER[side]).mean[0, -rank:]
    per_column = {name: sum(f.column == name for f in coding.features) for name in coding.columns}
    effects = []
    for feature, weights in zip(coding.features, info.scales.features[side], strict=True):
        share = (per_column[feature.column] * len(per_column)) ** -0.5
        size = feature.scale if feature.value is not None else share
        effect = size * weights
        own = float(effect[0]) if intercepts else 0.0
        effects.append(
            (feature.name, own + float(effect[-rank:] @ partner), own, effect[-rank:].tolist())
        )
    return effects


@dataclass(frozen=True)
class FitFeatures:
    rated: SideFeatures  # of the ids with ratings; null for an id without features
    unrated_ids: pa.Array  # ids with features and without ratings
    unrated: pa.Table  # one line for each of them
    notes: list[str]  # on columns that are left out, and on missing values

    @classmethod
    def of(cls, table: pa.Table, column: str, ids: pa.Array, whose: str) -> FitFeatures:
        known = one_array(table[column]).cast(ids.type)
        places = IdIndex(known).find(ids)
        rated = table.take(pa.array(places[places >= 0]))
        if not rated.num_rows:
            raise RequestError(
                f"{whose} features: none of the {table.num_rows:,} ids has a rating: are they "
                "other ids?"
            )
        coding, notes = learn_coding(rated, column)
        if not coding.features:
            raise RequestError(
                f"{whose} features: no column is left: {'; '.join(notes) or 'there are only ids'}"
            )
        aligned = table.drop_columns([column]).take(pa.array(places, mask=places < 0))
        without = len(ids) - rated.num_rows
        if without:
            notes = [*notes, f"{without:,} of {len(ids):,} ids with ratings have no features"]
        unrated = np.ones(table.num_rows, bool)
        unrated[places[places >= 0]] = False
        mask = pa.array(unrated)
        features = SideFeatures(aligned, coding, coding.coded(aligned))
        return cls(
            features,
            known.filter(mask),
            table.filter(mask),
            [f"{whose} features: {note}" for note in notes],
        )

    def unrated_lines(
        self,
        row: RowPosterior,
        coding: FeatureCoding,
        weights: NDArray[np.float64],
        std: FloatArray | None,
    ) -> pa.Table | None:
        """The factor table of the ids without ratings, or None.

        ``row`` is the prior of an id without ratings, ``std`` the one line of standard deviations
        of its position.
        """
        if not len(self.unrated_ids):
            return None
        rows = newcomer_rows(row, coding.coded(self.unrated) @ weights)
        measured = (
            None if std is None else np.repeat(np.insert(std, 0, 0.0, axis=1), rows.n_rows, axis=0)
        )
        return factor_table(self.unrated_ids, rows, measured)


def digest(table: pa.Table, column: str) -> int:
    """A checksum of a table of features, which does not depend on the order of its lines."""
    ordered = table.sort_by(column).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ordered.schema.remove_metadata()) as stream:
        stream.write_table(ordered.replace_schema_metadata(None))
    return zlib.crc32(sink.getvalue())


def give_features(
    engine: SideTables,
    tables: Mapping[Who, pa.Table],
    columns: Mapping[Who, str],
    ids: Mapping[Side, Ids],
) -> dict[Side, FitFeatures]:
    """Give the side features to an engine, whose ``ids`` have ratings.

    Columns that are left out are logged.
    """
    given: dict[Side, FitFeatures] = {}
    for who, table in tables.items():
        side = SIDE_OF[who]
        given[side] = FitFeatures.of(table, columns[who], ids[side].values, who)
        engine[side] = given[side].rated
        for note in given[side].notes:
            log.info(note)
    return given
