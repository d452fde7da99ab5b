"""ModelInfo: all of a model that is not one line per id, as it stands in ``metadata.json``. Plain data, no Spark."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onebit_spark.core.calibration import Calibration
from onebit_spark.core.confidence import Ladder
from onebit_spark.core.config import FORM_SETTINGS, FitConfig
from onebit_spark.core.posterior import Kind
from onebit_spark.core.priors import ScalePrior
from onebit_spark.core.scales import Moments, Scales
from onebit_spark.errors import RequestError

FORMAT_VERSION = 2


METADATA = "metadata.json"


LABEL_CODINGS = ("signed", "binary", "boolean", "threshold")  # −1/1, 0/1, false/true, a number above or below


CALIBRATION = {entry.name for entry in dataclasses.fields(Calibration)}


MOMENTS = {entry.name for entry in dataclasses.fields(Moments)}


INTERCEPT_PRIOR = ("mean", "mean_variance", "user_inverse_gamma", "item_inverse_gamma")


_TYPES: dict[str, type | tuple[type, ...]] = {
    "parameters": dict, "n_ratings": int, "n_users": int, "n_items": int, "objective_history": list, "iterations": int,
    "converged": bool, "reason": str, "effective_rank": int, "inverse_gamma": list,
    "intercept_prior": (dict, type(None)), "label_coding": str, "threshold": (float, int, type(None)), "majority": int,
    "columns": dict, "id_types": dict, "seconds": dict,
    "n_positive": int, "repeats": dict, "fingerprint": str, "validation": list, "exchange": dict,
    "calibration": (dict, type(None)), "diagnostics": (dict, type(None)), "fitted": (dict, type(None)),
    "scale_moments": (dict, type(None)), "draw_narrowing": (float, type(None)), "confidences": (dict, type(None)),
}  # fmt: skip


# A folder may be older than these.
_LATER = {
    "validation", "exchange", "calibration", "diagnostics", "fitted", "scale_moments", "draw_narrowing", "confidences",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """All of a model that is not one line per id. The content of ``metadata.json``, besides ``format_version``."""

    parameters: dict[str, Any]  # FitConfig as resolved: the κ, α and β that were used
    n_ratings: int
    n_users: int
    n_items: int
    objective_history: list[float]  # minimised
    iterations: int
    converged: bool
    reason: str
    effective_rank: int
    inverse_gamma: list[float]  # E[1/γ_k]
    intercept_prior: (
        dict[str, float] | None
    )  # mean m_μ, mean_variance v_μ, user_ and item_inverse_gamma E[1/γ_b], E[1/γ_d]
    label_coding: str
    threshold: float | None
    majority: int  # +1 or −1
    columns: dict[str, str]  # user, item, label
    id_types: dict[str, str]  # user, item: Spark's simple names, such as bigint
    seconds: dict[str, float] = field(default_factory=dict)
    n_positive: int = 0  # of the ratings
    repeats: dict[str, int] = field(default_factory=dict)  # see ``blocking.Repeats``
    fingerprint: str = ""  # of the set of ratings: see ``defects.Tally``
    validation: list[dict[str, float]] = field(default_factory=list)  # held-out loss and error after each iteration
    exchange: dict[str, str] = field(default_factory=dict)  # how factors travelled, and why so
    calibration: dict[str, Any] | None = None  # see ``calibration.Calibration``
    scale_moments: dict[str, Any] | None = None  # what q(γ) follows from: see ``scales.Moments``
    draw_narrowing: float | None = None  # after a prior split: how much narrower an unknown id is drawn
    confidences: dict[str, Any] | None = None  # of the fitted ratings: see ``certificate.confidence.Ladder``
    diagnostics: dict[str, Any] | None = None  # see ``diagnostics``: how the model does on ratings, for the report
    fitted: dict[str, Any] | None = None  # limit and complete of ``sketch.CellSketch``

    def __post_init__(self) -> None:
        problems = self._problems()
        if problems:
            raise ValueError("; ".join(problems))

    @property
    def config(self) -> FitConfig:
        return FitConfig(**self.parameters)

    @property
    def kind(self) -> Kind:
        """How the factor tables keep a row's uncertainty."""
        return self.config.make_loss().kind

    @property
    def scales(self) -> Scales:
        """q(γ) and q(μ), from which an unknown id is predicted."""
        factor, moments = np.asarray(self.inverse_gamma, np.float64), None
        if self.scale_moments is not None:
            moments = Moments(**{**self.scale_moments, "factor": np.asarray(self.scale_moments["factor"], np.float64)})
        if self.intercept_prior is None:
            return Scales(factor, moments=moments)
        told = self.intercept_prior
        return Scales(
            factor=factor,
            moments=moments,
            row_intercept=told["user_inverse_gamma"],
            col_intercept=told["item_inverse_gamma"],
            mean=told["mean"],
            mean_variance=told["mean_variance"],
        )

    @property
    def scale_prior(self) -> ScalePrior:
        """π^γ, with the α and β that were used."""
        return self.config.make_prior(self.n_users + self.n_items)

    @property
    def calibrated(self) -> Calibration | None:
        """How the probability was calibrated, if it was."""
        return None if self.calibration is None else Calibration(**self.calibration)

    @property
    def ladder(self) -> Ladder | None:
        """The thresholds that a selective certificate chooses from, if the fit kept them."""
        return None if self.confidences is None else Ladder.from_dict(self.confidences)

    def to_json(self) -> str:
        content = {"format_version": FORMAT_VERSION, **dataclasses.asdict(self)}
        return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False, default=lambda number: number.item())

    @classmethod
    def from_json(cls, text: str) -> ModelInfo:
        """The inverse of ``to_json``; a RequestError for anything else."""
        try:
            content = json.loads(text)
        except ValueError as error:
            raise RequestError(f"damaged model folder: {METADATA} is no JSON ({error})") from None
        version = content.get("format_version") if isinstance(content, dict) else None
        if not isinstance(version, int) or version < 1:
            raise RequestError(f"damaged model folder: {METADATA} has no format_version")
        if version > FORMAT_VERSION:
            raise RequestError(
                f"the model has format_version {version}, and this onebit_spark reads version {FORMAT_VERSION}: "
                "upgrade the package"
            )
        missing = [name for name in _TYPES if name not in content and name not in _LATER]
        if missing:
            raise RequestError(f"damaged model folder: {METADATA} lacks {', '.join(missing)}")
        try:
            return cls(**{name: content[name] for name in _TYPES if name in content})._of_today()
        except ValueError as error:
            raise RequestError(f"damaged model folder: {METADATA}: {error}") from None

    def _of_today(self) -> ModelInfo:
        """With what an older folder does not say in so many words."""
        seen = self.diagnostics
        if seen is None or "fitted" in seen:
            return self
        return dataclasses.replace(self, diagnostics={**seen, "fitted": "training" in str(seen.get("source"))})

    def _problems(self) -> list[str]:
        found = [name for name, kind in _TYPES.items() if not isinstance(getattr(self, name), kind)]
        if found:
            return [f"{name} cannot be {getattr(self, name)!r}" for name in found]
        known, told = {entry.name for entry in dataclasses.fields(FitConfig)}, set(self.parameters)
        if not set(FORM_SETTINGS) <= told <= known:
            return [f"parameters lack {sorted(set(FORM_SETTINGS) - told)} or hold the unknown {sorted(told - known)}"]
        problems = [str(problem) for problem in self.config.problems()]
        if problems:
            return problems
        if len(self.inverse_gamma) != self.config.rank:
            problems.append(f"inverse_gamma has {len(self.inverse_gamma)} entries for rank {self.config.rank}")
        if set(self.intercept_prior or ()) != set(INTERCEPT_PRIOR if self.config.intercepts else ()):
            problems.append(
                f"intercept_prior cannot be {self.intercept_prior} with intercepts={self.config.intercepts}"
            )
        if self.label_coding not in LABEL_CODINGS:
            problems.append(f"label_coding must be one of {', '.join(LABEL_CODINGS)}, not {self.label_coding!r}")
        if self.majority not in (-1, 1):
            problems.append(f"majority must be 1 or −1, not {self.majority}")
        if self.calibration is not None and set(self.calibration) != CALIBRATION:
            problems.append(f"calibration must hold {', '.join(sorted(CALIBRATION))}, not {self.calibration}")
        if self.scale_moments is not None and set(self.scale_moments) != MOMENTS:
            problems.append(f"scale_moments must hold {', '.join(sorted(MOMENTS))}, not {self.scale_moments}")
        if self.fitted is not None and set(self.fitted) != {"limit", "complete"}:
            problems.append(f"fitted must hold limit and complete, not {self.fitted}")
        if self.confidences is not None:
            try:
                Ladder.from_dict(self.confidences)
            except (LookupError, TypeError, ValueError) as error:
                problems.append(f"confidences are not those of a fit: {error}")
        if not {"user", "item", "label"} <= set(self.columns):
            problems.append(f"columns must name user, item and label, not {self.columns}")
        if not {"user", "item"} <= set(self.id_types):
            problems.append(f"id_types must name user and item, not {self.id_types}")
        return problems
