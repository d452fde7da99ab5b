"""FitChoices: the Params of a fit as settings, and all problems with them."""

from __future__ import annotations

from typing import Any, Protocol, Self, TypeVar

from onebit_spark.certificate.certificates import Terms
from onebit_spark.core.config import FitConfig
from onebit_spark.core.execution import Execution
from onebit_spark.core.settings import Problem, param_names
from onebit_spark.errors import RequestError
from onebit_spark.input.defects import Columns
from onebit_spark.input.labels import Labels
from onebit_spark.ml.fit_params import FitParams


class Settings(Protocol):
    """A dataclass of settings that can check itself."""

    def problems(self) -> list[Problem]: ...


NOT_WITH_VALIDATION = "validationIndicatorCol does not go with prepared ratings, for a folder holds none to watch"

S = TypeVar("S", bound=Settings)


def refuse(problems: list[str]) -> None:
    """Raise a RequestError with all problems, if there are any."""
    if problems:
        raise RequestError("; ".join(problems))


class FitChoices(FitParams):
    """The Params of ``OneBitCompletion``, read as settings."""

    def setNumBlocks(self, value: int) -> Self:
        """Set both numUserBlocks and numItemBlocks, as in ALS."""
        return self._set(numUserBlocks=value, numItemBlocks=value)

    def setParams(self, **params: Any) -> Self:
        """Set Params by the names that the constructor knows; None leaves one as it is."""
        unknown = [name for name in params if not self.hasParam(name)]
        if unknown:
            raise TypeError(f"OneBitCompletion has no Param {', '.join(unknown)}")
        return self._set_given(**params)

    def fitConfig(self) -> FitConfig:
        """What to fit, as a ``FitConfig``."""
        return self._chosen(FitConfig)

    def execution(self) -> Execution:
        """How the fit is run."""
        return self._chosen(Execution)

    def certificateTerms(self) -> Terms:
        """The terms of the certificates, which must be decided before the fit."""
        return self._chosen(Terms)

    def columns(self) -> Columns:
        """The input columns, and how a number becomes a label."""
        return Columns(
            self.getUserCol(),
            self.getItemCol(),
            self.getRatingCol() or self.getLabelCol(),
            self.getThreshold(),
            self.getWeightCol() or None,
        )

    def problems(self) -> list[str]:
        """All problems with the Params, in words; an empty list if there are none."""
        tables = (self._chosen(Labels), self.fitConfig(), self.execution(), self.certificateTerms())
        problems = [problem.told(param_names(type(table))) for table in tables for problem in table.problems()]
        if self.getValidationIndicatorCol():
            problems += [f"{name} does not go with validationIndicatorCol" for name in self.fromTheBeginning()]
            if self.getBlocksDir():
                problems.append(NOT_WITH_VALIDATION)
        if self.isSet(self.ratingCol) and self.isSet(self.labelCol):
            problems.append(
                f"ratingCol {self.getRatingCol()!r} and labelCol {self.getLabelCol()!r} name the same thing: set one"
            )
        names = self.columns()
        if len({names.user, names.item, names.label}) < 3:
            problems.append("userCol, itemCol and labelCol (or ratingCol) must name three different columns")
        return problems + self.coldStartProblems()

    def fromTheBeginning(self) -> list[str]:
        """The Params that are set and that need a fit from the beginning on all ratings."""
        chosen = {"certificatePriorSplit": self.getCertificatePriorSplit(), "checkpointDir": self.getCheckpointDir()}
        return [name for name, value in chosen.items() if value is not None]

    def _chosen(self, table: type[S]) -> S:
        """The values of the Params as the settings of a table."""
        return table(
            **{
                name: self.getOrDefault(param) if self.isDefined(param) else None
                for name, param in param_names(table).items()
            }
        )
