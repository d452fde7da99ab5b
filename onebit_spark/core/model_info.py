"""ModelInfo: the content of ``metadata.json``, that is, all of a model but the factor tables. It imports no Spark."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from onebit_spark.core.calibration import Calibration
from onebit_spark.core.config import FORM_SETTINGS, FitConfig
from onebit_spark.core.hyper_posterior import HyperPosterior, Moments
from onebit_spark.core.losses import Side
from onebit_spark.core.posterior import MODEL_VECTORS, Kind
from onebit_spark.core.prediction import ConfidenceThresholds
from onebit_spark.core.priors import ScalePrior
from onebit_spark.errors import RequestError

Who = Literal["user", "item"]
SIDE_OF: dict[Who, Side] = {"user": "rows", "item": "cols"}
PARTNER: dict[Who, Who] = {"user": "item", "item": "user"}

FORMAT_VERSION = 4
METADATA = "metadata.json"
LABEL_CODINGS = ("signed", "binary", "boolean", "threshold")  # −1/1, 0/1, false/true, a number above a threshold

CALIBRATION = {entry.name for entry in dataclasses.fields(Calibration)}
MOMENTS = {entry.name for entry in dataclasses.fields(Moments) if entry.default is dataclasses.MISSING}
# Entry of ``intercept_prior`` ─► field of ``HyperPosterior``.
INTERCEPT_PRIOR = {
    "mean": "mean", "mean_variance": "mean_variance", "user_inverse_gamma": "row_intercept",
    "item_inverse_gamma": "col_intercept",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """The content of ``metadata.json``, without ``format_version``."""

    parameters: dict[str, Any]  # the fields of ``FitConfig``, with the κ, α and β that were used
    n_ratings: int  # numbers of ratings, of users with ratings and of items with ratings
    n_users: int
    n_items: int
    objective_history: list[float]  # The objective after each iteration. It is minimised.
    iterations: int  # number of iterations
    converged: bool  # whether the stopping rule held (docs/MATH.md, §7.4)
    reason: str  # why the fit stopped
    effective_rank: int  # factors in use (§8.5)
    inverse_gamma: list[float]  # g_k = E[1/γ_k] of each factor
    # ``mean`` m_μ, ``mean_variance`` v_μ, ``user_inverse_gamma`` E[1/γ_b], ``item_inverse_gamma`` E[1/γ_d]. None
    # without intercepts.
    intercept_prior: dict[str, float] | None
    label_coding: str  # how the labels of the input were coded
    threshold: float | None  # a label strictly above it is positive
    majority: int  # the more frequent label
    # names of the columns ``user``, ``item`` and ``label``, and ``weight`` if the fit was weighted
    columns: dict[str, str]
    id_types: dict[str, str]  # spark's types of the ids of ``user`` and ``item``, such as bigint
    seconds: dict[str, float] = field(default_factory=dict)  # seconds of each phase of the fit
    n_positive: int = 0  # number of positive ratings
    repeats: dict[str, int] = field(default_factory=dict)  # repeated ratings of a cell: see ``core.blocks``
    fingerprint: str = ""  # hash of the set of ratings: see ``input.rating_checks``
    exchange: dict[str, str] = field(default_factory=dict)  # how factors travelled, and why this exchange was chosen
    calibration: dict[str, Any] | None = None  # see ``calibration.Calibration``
    scale_moments: dict[str, Any] | None = None  # what determines q(γ): see ``hyper_posterior.Moments``
    # after a prior split: the factor by which the spread of an unknown id is multiplied in certified draws (§9.4)
    draw_narrowing: float | None = None
    # thresholds of the confidence, from the fitted ratings: see ``prediction.ConfidenceThresholds``
    confidences: dict[str, Any] | None = None
    weight_losses: dict[str, float] | None = None  # if κ was chosen: the held-out loss of each κ that was tried
    # if a tenth of the ratings chose the settings: how, see ``model_selection.SelectedModel.as_dict``
    choice: dict[str, Any] | None = None
    # for ``user`` and ``item``, if they have side features: ``coding`` (``side_features.FeatureCoding``), ``weights``
    # W (p × D), and the number of ``newcomers``, ids without ratings
    side_features: dict[str, dict[str, Any]] | None = None
    total_weight: float | None = None  # if the fit was weighted: the sum of the weights
    diagnostics: dict[str, Any] | None = None  # figures for the report: see ``ml.scoring``
    fitted: dict[str, Any] | None = None  # ``limit`` and ``complete`` of ``hashes.CellSketch``

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
        return self.config.make_loss().kind

    @property
    def table_form(self) -> tuple[Kind, bool, int]:
        """Kind, intercepts and vectors of implicit features: what the columns of the factor tables follow from."""
        return self.kind, self.config.intercepts, MODEL_VECTORS if self.config.implicit_features else 0

    @property
    def negative_label(self) -> float:
        """The negative label in predictions. The positive one is 1."""
        return -1.0 if self.label_coding == "signed" else 0.0

    @property
    def scales(self) -> HyperPosterior:
        """q(γ), q(μ) and W. Unknown ids are predicted from them. The inverse of ``scale_fields``."""
        learned = self.side_features or {}
        features: dict[Side, Any] = {
            side: np.asarray(learned[who]["weights"], np.float64) for who, side in SIDE_OF.items() if who in learned
        }
        return HyperPosterior(
            self.scale_prior,
            self.config.intercepts,
            np.asarray(self.inverse_gamma, np.float64),
            moments=None if self.scale_moments is None else Moments.from_dict(self.scale_moments),
            features=features,
            **{INTERCEPT_PRIOR[name]: value for name, value in (self.intercept_prior or {}).items()},
        )

    def count(self, who: str) -> int:
        return self.n_users if who == "user" else self.n_items

    @property
    def rated(self) -> tuple[int, int]:
        """Numbers of users and of items without those that are known by their side features alone."""
        users, items = ((self.side_features or {}).get(who, {}).get("newcomers", 0) for who in ("user", "item"))
        return self.n_users - users, self.n_items - items

    @property
    def scale_prior(self) -> ScalePrior:
        """π^γ with the α and β that were used."""
        return self.config.make_prior(self.n_users + self.n_items)

    @property
    def calibrated(self) -> Calibration | None:
        """The calibration of the probability, or None."""
        return None if self.calibration is None else Calibration(**self.calibration)

    @property
    def confidence_thresholds(self) -> ConfidenceThresholds | None:
        """The thresholds that a selective certificate chooses from, or None in an older model."""
        return None if self.confidences is None else ConfidenceThresholds.from_dict(self.confidences)

    def to_json(self) -> str:
        content = {"format_version": FORMAT_VERSION, **dataclasses.asdict(self)}
        return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False, default=lambda number: number.item())

    @classmethod
    def from_json(cls, text: str) -> ModelInfo:
        """The inverse of ``to_json``. Raises a RequestError if the text is not the metadata of a model."""
        try:
            content = json.loads(text)
        except ValueError as error:
            raise RequestError(f"damaged model folder: {METADATA} is not JSON ({error})") from None
        version = content.get("format_version") if isinstance(content, dict) else None
        if not isinstance(version, int) or version < 1:
            raise RequestError(f"damaged model folder: {METADATA} has no format_version")
        if version > FORMAT_VERSION:
            raise RequestError(
                f"the model has format_version {version}, and this onebit_spark reads version {FORMAT_VERSION}: "
                "upgrade the package"
            )
        missing = [name for name in _REQUIRED if name not in content]
        if missing:
            raise RequestError(f"damaged model folder: {METADATA} lacks {', '.join(missing)}")
        if isinstance(content["parameters"], dict):
            content["parameters"].pop("calibrate", None)  # a setting of version 0.2.0
            if version < 3:
                content["parameters"].setdefault("implicit_features", False)
        try:
            info = cls(**{name: content[name] for name in _TYPES if name in content})
        except ValueError as error:
            raise RequestError(f"damaged model folder: {METADATA}: {error}") from None
        if info.diagnostics is not None:  # an older version did not write ``fitted``
            info.diagnostics.setdefault("fitted", "training" in str(info.diagnostics.get("source")))
        return info

    def _problems(self) -> list[str]:
        """All problems, each group only if the fields that it reads are right."""
        wrong = [name for name, kinds in _TYPES.items() if not isinstance(getattr(self, name), kinds)]
        if wrong:
            return [f"{name} cannot be {getattr(self, name)!r}" for name in wrong]
        known, held = {entry.name for entry in dataclasses.fields(FitConfig)}, set(self.parameters)
        if not set(FORM_SETTINGS) <= held <= known:
            return [f"parameters lack {sorted(set(FORM_SETTINGS) - held)} or hold the unknown {sorted(held - known)}"]
        return [str(problem) for problem in self.config.problems()] or list(self._wrong_values())

    def _wrong_values(self) -> Iterator[str]:
        config = self.config
        if len(self.inverse_gamma) != config.rank:
            yield f"inverse_gamma has {len(self.inverse_gamma)} entries for rank {config.rank}"
        if set(self.intercept_prior or ()) != set(INTERCEPT_PRIOR if config.intercepts else ()):
            yield f"intercept_prior cannot be {self.intercept_prior} with intercepts={config.intercepts}"
        if self.label_coding not in LABEL_CODINGS:
            yield f"label_coding must be one of {', '.join(LABEL_CODINGS)}, not {self.label_coding!r}"
        if self.majority not in (-1, 1):
            yield f"majority must be 1 or −1, not {self.majority}"
        if self.confidences is not None:
            try:
                ConfidenceThresholds.from_dict(self.confidences)
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


def scale_fields(scales: HyperPosterior, intercepts: bool) -> dict[str, Any]:
    """The fields of ``ModelInfo`` that hold q(γ) and q(μ)."""
    return {
        "inverse_gamma": np.asarray(scales.factor).tolist(),
        "intercept_prior": {name: getattr(scales, held) for name, held in INTERCEPT_PRIOR.items()}
        if intercepts
        else None,
        "scale_moments": None if scales.moments is None else scales.moments.as_dict(),
    }


def _accepted(hint: Any) -> tuple[type, ...]:
    """The types of JSON's values for a field: an integer is also a float."""
    kinds = tuple(get_origin(part) or part for part in (get_args(hint) if isinstance(hint, UnionType) else (hint,)))
    return (*kinds, int) if float in kinds else kinds


_TYPES = {name: _accepted(hint) for name, hint in get_type_hints(ModelInfo).items()}
_SINCE_VERSION_1 = ("seconds", "n_positive", "repeats", "fingerprint")  # these and all fields without a default
_REQUIRED = [
    entry.name
    for entry in dataclasses.fields(ModelInfo)
    if entry.name in _SINCE_VERSION_1 or (entry.default is entry.default_factory is dataclasses.MISSING)
]
