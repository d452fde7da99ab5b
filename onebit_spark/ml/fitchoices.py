"""FitChoices: what the Params of a fit amount to, and what is wrong with them."""

from __future__ import annotations

import re

from onebit_spark.certificate.certified import Terms
from onebit_spark.core.config import EXCHANGES, FitConfig
from onebit_spark.input.defects import Columns
from onebit_spark.ml.fitparams import FitParams

TERM_PARAMS = {"grid": "certificateGrid", "prior_split": "certificatePriorSplit"}  # the others have their own names


class FitChoices(FitParams):
    """The Params of ``OneBitCompletion``, read together."""

    def fitConfig(self) -> FitConfig:
        """The fit's configuration as the in-process interface knows it."""
        return FitConfig(
            loss=self.getLoss(),
            prior=self.getPrior(),
            rank=self.getRank(),
            likelihood_weight=self.getLikelihoodWeight(),
            alpha=self.getAlpha(),
            beta=self.getBeta(),
            intercepts=self.getFitIntercept(),
            solver=self.getSolver(),
            start=self.getStart(),
            covariance=self.getCovariance(),
            max_iter=self.getMaxIter(),
            tol=self.getTol(),
            seed=self.getSeed(),
        )

    def columns(self) -> Columns:
        """The input columns, and how a number becomes a label."""
        return Columns(
            self.getUserCol(), self.getItemCol(), self.getRatingCol() or self.getLabelCol(), self.getThreshold()
        )

    def problems(self) -> list[str]:
        """Everything that is wrong with the Params, in words; empty if nothing is."""
        found = [re.sub(r"^\w+", lambda field: _camel(field[0]), told) for told in self.fitConfig().problems()]
        counts = {
            "numUserBlocks": self.getNumUserBlocks(),
            "numItemBlocks": self.getNumItemBlocks(),
            "patience": self.getPatience(),
            "checkpointInterval": self.getCheckpointInterval(),
        }
        for name, number in counts.items():
            if number is not None and number < 1:
                found.append(f"{name} must be at least 1, not {number}")
        if self.getExchange() not in EXCHANGES:
            found.append(f"exchange must be one of {', '.join(EXCHANGES)}, not {self.getExchange()!r}")
        if self.getResume() and not self.getCheckpointDir():
            found.append("resume needs a checkpointDir to resume from")
        if self.getValidationIndicatorCol():
            found += [f"{name} does not go with validationIndicatorCol" for name in self.fromTheBeginning()]
            if self.getExchange() == "shuffle":
                found.append("exchange=shuffle does not go with validationIndicatorCol: choose auto or broadcast")
        if self.isSet(self.ratingCol) and self.isSet(self.labelCol):
            found.append(
                f"ratingCol {self.getRatingCol()!r} and labelCol {self.getLabelCol()!r} name the same thing: set one"
            )
        names = self.columns()
        if len({names.user, names.item, names.label}) < 3:
            found.append("userCol, itemCol and labelCol (or ratingCol) must name three different columns")
        for told in self.certificateTerms().problems():  # each begins with the name of its field
            found.append(re.sub(r"^\w+", lambda field: TERM_PARAMS.get(field[0], field[0]), told))
        return found + self.coldStartProblems()

    def certificateTerms(self) -> Terms:
        """What is settled before the fit so that its certificate holds."""
        return Terms(
            delta=self.getOrDefault(self.delta),
            grid=self.getOrDefault(self.certificateGrid),
            prior_split=self._maybe(self.certificatePriorSplit),
        )

    def wantedExchange(self) -> str:
        """``exchange``; a validation curve is drawn on the driver, which must then hold the factors anyway."""
        return "broadcast" if self.getValidationIndicatorCol() else self.getExchange()

    def fromTheBeginning(self) -> list[str]:
        """The Params that are set and that only a fit from the beginning, on all its ratings, can honour."""
        chosen = {"certificatePriorSplit": self.getCertificatePriorSplit(), "checkpointDir": self.getCheckpointDir()}
        return [name for name, value in chosen.items() if value is not None]


def _camel(field: str) -> str:
    """The Param of a field of FitConfig."""
    if field == "intercepts":
        return "fitIntercept"
    first, *rest = field.split("_")
    return first + "".join(map(str.capitalize, rest))
