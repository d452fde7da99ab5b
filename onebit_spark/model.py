"""OneBitCompletionModel: predictions with their spread and probability, the pyspark.ml way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import DataFrame

from onebit_spark.certificate.certified import Terms
from onebit_spark.input.defects import Tally
from onebit_spark.ml.diagnostics import calibrate, diagnose
from onebit_spark.ml.evaluation import certify_selective
from onebit_spark.ml.fittedmodel import FittedModel
from onebit_spark.ml.foldin import fold_in
from onebit_spark.ml.persistence import ModelReader, ModelWriter
from onebit_spark.ml.recommend import Wish, recommend


class OneBitCompletionModel(FittedModel, MLWritable, MLReadable["OneBitCompletionModel"]):
    """A fitted model: ``info``, and the posterior of both sides, DataFrames of one line per id (see ``factortables``).

    ``certificate`` holds upper limits on the error rate: the content of ``certificate.json``.
    """

    # ---- recommendations ---------------------------------------------------------------------------------------------

    def recommendForAllUsers(
        self, numItems: int, z: float | None = None, excludeSeen: DataFrame | None = None, answeredOnly: bool = False
    ) -> DataFrame:
        """The best items of every user: (user, recommendations), see ``recommend.recommend``.

        Ranked by probability; with ``z`` by score − z·std, which asks for items that are surely liked.
        ``excludeSeen``: ratings (or any pairs of ids) that are not to be recommended. ``answeredOnly`` lists only pairs
        that ``answered`` is true for. That guarantees nothing of the lists: the certificate speaks of pairs drawn like
        the held-out ratings, and the best of all pairs are not drawn like them.
        """
        return recommend(self, "user", Wish(numItems, z, excludeSeen, self._floor(answeredOnly)))

    def recommendForAllItems(
        self, numUsers: int, z: float | None = None, excludeSeen: DataFrame | None = None, answeredOnly: bool = False
    ) -> DataFrame:
        """The best users of every item, in the same way."""
        return recommend(self, "item", Wish(numUsers, z, excludeSeen, self._floor(answeredOnly)))

    def recommendForUserSubset(
        self, dataset: DataFrame, numItems: int, z: float | None = None, excludeSeen: DataFrame | None = None,
        answeredOnly: bool = False,
    ) -> DataFrame:  # fmt: skip
        """The best items of the users in ``dataset``; those that the model does not know are left out."""
        return recommend(self, "user", Wish(numItems, z, excludeSeen, self._floor(answeredOnly)), dataset)

    def recommendForItemSubset(
        self, dataset: DataFrame, numUsers: int, z: float | None = None, excludeSeen: DataFrame | None = None,
        answeredOnly: bool = False,
    ) -> DataFrame:  # fmt: skip
        """The best users of the items in ``dataset``; those that the model does not know are left out."""
        return recommend(self, "item", Wish(numUsers, z, excludeSeen, self._floor(answeredOnly)), dataset)

    # ---- new users and items -----------------------------------------------------------------------------------------

    def foldIn(
        self, ratings: DataFrame, who: Literal["user", "item"] = "user", threshold: float | None = None
    ) -> OneBitCompletionModel:
        """A model that also knows the users (or the items) in ``ratings``, from their full history, without a refit.

        An id that the model knows already is replaced. Ratings of partners that it does not know say nothing and are
        passed over. Labels are as in the fit, with its threshold unless another is given.
        """
        return fold_in(self, ratings, who, self.info.threshold if threshold is None else threshold)

    # ---- how good it is ----------------------------------------------------------------------------------------------

    def diagnose(
        self, ratings: DataFrame, source: str = "held-out ratings", *, fitted: bool = False, tally: Tally | None = None
    ) -> OneBitCompletionModel:
        """This model with the figures of its report, measured on ``ratings``: ``source`` in words.

        ``fitted`` says that it was fitted to them: the report then warns that its figures flatter. ``tally``: of the
        ratings, if ``check_ratings`` has counted them before.
        """
        return self.changed(diagnostics=diagnose(self, ratings, source, fitted, tally))

    def calibrate(self, ratings: DataFrame) -> OneBitCompletionModel:
        """This model with a probability that comes true as often as it says on ``ratings``, which it has not seen.

        Score, spread and prediction stay as they are; the probability is above ½ exactly where the score is above 0.
        """
        return self.changed(calibration=calibrate(self, ratings).as_dict())

    def certifySelective(
        self, ratings: DataFrame, maxError: float | Sequence[float] = 0.05, delta: float = 0.05, by: str | None = None,
        certificateGrid: int = 1,
    ) -> OneBitCompletionModel:  # fmt: skip
        """This model with a column ``answered``: where it is true, at most ``maxError`` of the predictions are wrong.

        That holds with probability 1 − δ over ``ratings``, which the model must not have seen, for pairs drawn like
        them. Several error rates share δ; the Param ``maxError`` selects one, the first unless it is set. A rate that
        cannot be met answers nothing. ``by``: a column of ``ratings`` within whose groups it is certified as well; the
        groups' thresholds are reported and not applied. ``certificateGrid`` counts the models or settings that were
        compared on these ratings. Earlier selective certificates are replaced.
        """
        requests = [maxError] if isinstance(maxError, int | float) else list(maxError)
        model = self.changed()
        model.certificate = certify_selective(self, ratings, requests, Terms(delta=delta, grid=certificateGrid), by)
        return model

    # ---- the folder --------------------------------------------------------------------------------------------------

    def write(self) -> ModelWriter:
        return ModelWriter(self)

    @classmethod
    def read(cls) -> ModelReader:
        return ModelReader(cls)
