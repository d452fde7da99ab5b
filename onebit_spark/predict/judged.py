"""How a model does on ratings: figures, certificates, calibration and diagnosis, once for every
runtime.

model.judge(ratings)  ─►  Judged: ratings that were checked, with what the model predicts for them
JudgedModel           ─►  evaluate_on, certify_on, calibrate_on, diagnose_on
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Protocol, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.certify.certificates import OF_PREDICTIONS, Certificate, headline_of
from onebit_spark.certify.freshness import Freshness, fresh_to, seen_in_fit
from onebit_spark.certify.requests import (
    CertificateRequest,
    Document,
    make_certificates,
    replace_certificates,
)
from onebit_spark.data.hashes import HIGHEST, CellSketch, cell_hashes
from onebit_spark.errors import RequestError
from onebit_spark.model_info import ModelInfo
from onebit_spark.predict.factors import Factors
from onebit_spark.predict.figures import (
    CALIBRATING,
    SAMPLE,
    Figures,
    ScoreSums,
    calibrate,
    count_by_level,
    diagnose,
    figures_of,
    sampled,
    scored_table,
)
from onebit_spark.predict.sides import Anchors
from onebit_spark.predict.top_n import Numbers


class Judged(Protocol):
    """Ratings that were checked, with what a model predicts for them."""

    @property
    def n(self) -> int: ...

    @property
    def threshold(self) -> float | None: ...

    def score(self, most: int | None = None) -> pa.Table:
        """The lines of ``scored_table`` of all ratings, or of a sample of about ``most`` of
        them.
        """

    def sum_up(self) -> ScoreSums: ...

    def sketch(self, limit: int) -> CellSketch: ...


@dataclass(frozen=True, eq=False)
class RatingsHere:
    """Ratings in this process, at positions of the two sides of a model."""

    factors: Factors
    rows: Numbers
    cols: Numbers
    positive: NDArray[np.bool_]
    ids: tuple[pa.Array, pa.Array] | None = None  # of users and items
    groups: pa.ChunkedArray | None = None  # text
    threshold: float | None = None
    n_all: int | None = None  # if these are a sample: the number of all

    @classmethod
    def of(
        cls,
        factors: Factors,
        ids: tuple[pa.Array, pa.Array],
        positive: NDArray[np.bool_],
        groups: pa.ChunkedArray | None = None,
        threshold: float | None = None,
    ) -> RatingsHere:
        rows, cols = factors.find(*ids)
        return cls(factors, rows, cols, positive, ids, groups, threshold)

    @property
    def n(self) -> int:
        return len(self.rows) if self.n_all is None else self.n_all

    def score(self, most: int | None = None) -> pa.Table:
        n = len(self.rows)
        if most is not None and n > most:
            places = sampled(n, most)
            part = self.rows[places], self.cols[places], self.positive[places]
            return RatingsHere(self.factors, *part).score()
        lines = {
            "positive": self.positive,
            "unknown_user": self.rows < 0,
            "unknown_item": self.cols < 0,
            "group": pa.nulls(n, pa.string()) if self.groups is None else self.groups,
            **self.factors.predict(self.rows, self.cols),
        }
        return scored_table(self.factors.info, pa.table(lines))

    def sum_up(self) -> ScoreSums:
        return ScoreSums.of(self.score())

    def sketch(self, limit: int) -> CellSketch:
        assert self.ids is not None, (
            "only ratings that were not fitted are compared with those of the fit"
        )
        return CellSketch.of(cell_hashes(*self.ids), limit)


class JudgedModel(ABC):
    """What follows from the ratings that a model is judged by, the same in every runtime."""

    info: ModelInfo
    certificate: Document

    @property
    def certificates(self) -> list[Certificate]:
        """The certificates of the model: see ``certificate``."""
        return [Certificate.from_dict(item) for item in self.certificate["certificates"]]

    @property
    def headline(self) -> str | None:
        """The sentence of the first certificate. None if nothing was certified."""
        return headline_of(self.certificate)

    @property
    @abstractmethod
    def fitted(self) -> CellSketch | None:
        """The cells that the model was fitted on, if they are known."""

    @property
    @abstractmethod
    def predicts_unknown(self) -> bool:
        """Whether pairs with an unknown id are predicted."""

    @abstractmethod
    def with_info(self, info: ModelInfo) -> Self:
        """This model with another ``info``."""

    @abstractmethod
    def with_certificate(self, certificate: Document) -> Self:
        """This model with another content of ``certificate.json``."""

    @abstractmethod
    def draw(self, anchors: Anchors | None = None) -> Figures:
        """What a map shows; ``anchors`` are those of ``positions``."""

    @abstractmethod
    def draw_report(self) -> Figures | None:
        """The map of a report, if the model has positions with two dimensions."""

    def evaluate_on(self, on: Judged) -> Figures:
        """All figures of metrics.json; ``warning`` says whether the model was fitted on these
        ratings.
        """
        figures = figures_of(self.info, on.sum_up(), on.threshold)
        known = self.fitted
        seen = None if known is None else seen_in_fit(known, on.sketch(known.limit))
        return {**figures, "warning": seen}

    def certify_on(
        self,
        on: Judged,
        request: CertificateRequest,
        freshness: Freshness | None = None,
    ) -> tuple[Figures, list[Certificate]]:
        """The figures of metrics.json, and the certificates that these ratings give: ``holdout``
        first.

        Ratings of cells that the model was fitted on are refused, unless their ``freshness`` is
        given.
        """
        if freshness is None:
            known = self.fitted
            asked = None if known is None else on.sketch(known.limit)
            freshness = fresh_to(known, asked)
        sums = on.sum_up()
        counts = count_by_level(self.info, sums, request.by, self.predicts_unknown)
        certificates = make_certificates(self.info, counts, request, freshness)
        return figures_of(self.info, sums, on.threshold), certificates

    def calibrate_on(self, on: Judged) -> Self:
        """This model with probabilities that agree with the frequencies in these ratings."""
        return self.with_info(
            replace(self.info, calibration=asdict(calibrate(on.score(CALIBRATING))))
        )

    def diagnose_on(self, on: Judged, source: str, fitted: bool = False) -> Self:
        """This model with the figures of its report, and a map of its users.

        ``source`` says in words what the ratings are; ``fitted`` whether the model was fitted to
        them.
        """
        if not on.n:
            raise RequestError("cannot diagnose: there is no rating")
        if on.n > SAMPLE:
            source = f"a sample of {source}"
        figures = diagnose(on.score(SAMPLE), source, fitted)
        drawing = self.draw_report()
        if drawing is not None:
            figures["map"] = drawing
        return self.with_info(replace(self.info, diagnostics=figures))

    def replace_certificates(
        self,
        certificates: Sequence[Certificate],
        instead_of: Sequence[str] = OF_PREDICTIONS,
    ) -> Self:
        """This model with more certificates instead of those with some names, and of those of
        groups.
        """
        return self.with_certificate(
            replace_certificates(self.certificate, certificates, instead_of)
        )

    @property
    def sketch_limit(self) -> int:
        """The largest hash of a sketch that can be merged with that of the fit."""
        return HIGHEST if self.fitted is None else self.fitted.limit
