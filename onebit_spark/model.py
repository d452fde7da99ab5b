"""OneBitCompletionModel: the fitted model in pyspark.ml."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import DataFrame

from onebit_spark.certificate.certificates import OF_PREDICTIONS, headline_of
from onebit_spark.certificate.held_out import SELECTIVE
from onebit_spark.core.fitted_features import Who, feature_effects
from onebit_spark.errors import RequestError
from onebit_spark.input.rating_checks import RatingCounts
from onebit_spark.ml.evaluation import CertificateRequest, calibrate, certified, diagnose, with_certificates
from onebit_spark.ml.fitted_model import SparkModel
from onebit_spark.ml.fold_in import fold_in, fold_in_features, update
from onebit_spark.ml.persistence import ModelReader, ModelWriter, export_vectors
from onebit_spark.ml.recommend import Request, recommend


class OneBitCompletionModel(SparkModel, MLWritable, MLReadable["OneBitCompletionModel"]):
    """A fitted model. ``OneBitCompletion.fit`` makes it; ``transform`` predicts pairs.

    The methods return new models and DataFrames. They do not change the model.

    Attributes
    ----------
    info : ModelInfo
        Settings, counts and history of the fit: the content of ``metadata.json``.
    users, items : DataFrame
        Posterior of each user and each item, one line per id: see ``core.factor_tables``.
    certificate : dict
        Upper limits on the error rate: the content of ``certificate.json``.
    source : str or None
        The folder that the factors are read from, for a model that was loaded.
    """

    # ---- recommendations ---------------------------------------------------------------------------------------------

    def recommendForAllUsers(
        self, numItems: int, z: float | None = None, excludeSeen: DataFrame | None = None, answeredOnly: bool = False
    ) -> DataFrame:
        """The best items of each user.

        Parameters
        ----------
        numItems : int
            Items per user.
        z : float, optional
            Rank by score − z·std instead of the probability. This prefers items that the model is sure of.
        excludeSeen : DataFrame, optional
            Ratings, or other pairs of ids, that are not recommended.
        answeredOnly : bool
            List only pairs for which ``answered`` is true. This gives no guarantee for the lists: the certificate is
            about pairs drawn like the held-out ratings, and the best pairs are not drawn like them.

        Returns
        -------
        DataFrame
            User and ``recommendations``, an array of structs with the best first: the item, ``rating`` (the score),
            ``std`` and ``probability``.
        """
        return recommend(self, "user", Request(numItems, z, excludeSeen, self._floor(answeredOnly)))

    def recommendForAllItems(
        self, numUsers: int, z: float | None = None, excludeSeen: DataFrame | None = None, answeredOnly: bool = False
    ) -> DataFrame:
        """The best users of each item. The parameters are those of ``recommendForAllUsers``."""
        return recommend(self, "item", Request(numUsers, z, excludeSeen, self._floor(answeredOnly)))

    def recommendForUserSubset(
        self, dataset: DataFrame, numItems: int, z: float | None = None, excludeSeen: DataFrame | None = None,
        answeredOnly: bool = False,
    ) -> DataFrame:  # fmt: skip
        """The best items of the users in ``dataset``. Users that the model does not know are left out."""
        return recommend(self, "user", Request(numItems, z, excludeSeen, self._floor(answeredOnly)), dataset)

    def recommendForItemSubset(
        self, dataset: DataFrame, numUsers: int, z: float | None = None, excludeSeen: DataFrame | None = None,
        answeredOnly: bool = False,
    ) -> DataFrame:  # fmt: skip
        """The best users of the items in ``dataset``. Items that the model does not know are left out."""
        return recommend(self, "item", Request(numUsers, z, excludeSeen, self._floor(answeredOnly)), dataset)

    # ---- new users and items -----------------------------------------------------------------------------------------

    def foldIn(
        self, ratings: DataFrame, who: Literal["user", "item"] = "user", threshold: float | None = None,
        features: DataFrame | None = None,
    ) -> OneBitCompletionModel:  # fmt: skip
        """A model that also knows the users (or the items) in ``ratings``, without a refit (docs/MATH.md, §8.3).

        An id that the model already knows is replaced. The new model has no certificates.

        Parameters
        ----------
        ratings : DataFrame
            All ratings of the new users, with the columns of the fit, that of the weights included. Ratings of items
            that the model does not know are ignored; a warning tells how many users have no others and are not folded
            in. If there are no ratings, this model comes back.
        who : {"user", "item"}
            Whether users or items are added.
        threshold : float, optional
            A label strictly above it is positive. Default: as in the fit.
        features : DataFrame, optional
            Side features of the new users or items, if the model was fitted with such features.
        """
        return fold_in(self, ratings, who, self.info.threshold if threshold is None else threshold, features)

    def update(
        self, ratings: DataFrame, threshold: float | None = None, userFeatures: DataFrame | None = None,
        itemFeatures: DataFrame | None = None,
    ) -> OneBitCompletionModel:  # fmt: skip
        """This model after new ratings, without a refit (docs/MATH.md, §8.6).

        The ratings may be of users and items that the model does not know, of known ones, or of both. What the model
        knew of them is the prior; then both sides of the new ratings are updated in turn. All other users and items
        stay as they are, and so does the number of factors: fit again from time to time. The new model has no
        certificates. See docs/streaming.md for ratings that arrive as a stream.

        Parameters
        ----------
        ratings : DataFrame
            New ratings only, at most 2,000,000, with the columns of the fit. A rating that was fitted before counts
            once more. If there are none, this model comes back.
        threshold : float, optional
            A label strictly above it is positive. Default: as in the fit.
        userFeatures, itemFeatures : DataFrame, optional
            Side features of new users and new items, if the model was fitted with such features.
        """
        given: dict[Who, DataFrame | None] = {"user": userFeatures, "item": itemFeatures}
        features = {who: frame for who, frame in given.items() if frame is not None}
        return update(self, ratings, self.info.threshold if threshold is None else threshold, features)

    def foldInFeatures(self, features: DataFrame, who: Literal["user", "item"] = "user") -> OneBitCompletionModel:
        """A model that also knows the users (or the items) in ``features``, from their side features alone.

        Ids that the model already knows do not change. The new model has no certificates.

        Parameters
        ----------
        features : DataFrame
            One line per id, with the columns that the model was fitted with (``setUserFeatures``).
        who : {"user", "item"}
            Whose features they are.
        """
        return fold_in_features(self, features, who)

    @property
    def userFeatureWeights(self) -> DataFrame:
        """What was learnt from the side features of the users, one line per feature.

        ``feature``; ``effect`` on the score of an item like the mean one; ``intercept`` and ``factors``, of which this
        is made. An effect is that of a string's value, or of one standard deviation of a number.
        """
        return self._feature_weights("user")

    @property
    def itemFeatureWeights(self) -> DataFrame:
        """What was learnt from the side features of the items: see ``userFeatureWeights``."""
        return self._feature_weights("item")

    def _feature_weights(self, who: Literal["user", "item"]) -> DataFrame:
        schema = "feature string, effect double, intercept double, factors array<double>"
        return self.users.sparkSession.createDataFrame(feature_effects(self.info, who), schema)

    # ---- quality -----------------------------------------------------------------------------------------------------

    def diagnose(
        self,
        ratings: DataFrame,
        source: str = "held-out ratings",
        *,
        fitted: bool = False,
        tally: RatingCounts | None = None,
    ) -> OneBitCompletionModel:
        """This model with the figures of its report, measured on ``ratings``.

        Parameters
        ----------
        ratings : DataFrame
            Ratings with the columns of the fit.
        source : str
            What these ratings are, in words, for the report.
        fitted : bool
            Whether the model was fitted to them. Then the report warns that the figures are too good.
        tally : RatingCounts, optional
            The count of the ratings, if they were checked before.
        """
        return self.changed(diagnostics=diagnose(self, ratings, source, fitted, tally))

    def calibrate(self, ratings: DataFrame) -> OneBitCompletionModel:
        """This model with a probability that agrees with the frequencies in ``ratings`` (docs/MATH.md, §8.4).

        The ratings must not have been fitted. Score, std and prediction do not change. The probability is above ½
        exactly where the score is above 0.
        """
        return self.changed(calibration=calibrate(self, ratings).as_dict())

    def certify(
        self, ratings: DataFrame, maxError: float | Sequence[float] = (), delta: float = 0.05, by: str | None = None,
        certificateGrid: int = 1,
    ) -> OneBitCompletionModel:  # fmt: skip
        """This model with an upper limit on the error rate of its predictions: see ``headline``.

        It holds with probability 1 − δ, for pairs drawn like ``ratings`` (docs/MATH.md, §9.2). Earlier certificates
        from ratings that the model had not seen are replaced.

        Parameters
        ----------
        ratings : DataFrame
            Ratings that the model has not seen, with the columns of the fit. Those of weight 0 do not count. Ratings
            that were fitted are refused.
        maxError : float or sequence of float
            Also answer only pairs of which at most this share is wrong: see ``certifySelective``.
        delta : float
            δ.
        by : str, optional
            A column of ``ratings``. Certify within each of its groups as well; the groups share δ.
        certificateGrid : int
            Number of models or settings that were compared on these ratings.
        """
        request = CertificateRequest.of(maxError, delta, by, certificateGrid)
        return with_certificates(self, certified(self, ratings, request), instead_of=OF_PREDICTIONS)

    def certifySelective(
        self, ratings: DataFrame, maxError: float | Sequence[float] = 0.05, delta: float = 0.05, by: str | None = None,
        certificateGrid: int = 1,
    ) -> OneBitCompletionModel:  # fmt: skip
        """This model with a column ``answered``. Where it is true, at most ``maxError`` of the predictions are wrong.

        This holds with probability 1 − δ, for pairs drawn like ``ratings`` (docs/MATH.md, §10). Earlier selective
        certificates are replaced. The other parameters are those of ``certify``.

        Parameters
        ----------
        maxError : float or sequence of float
            Requested error rates. They share δ. The Param ``maxError`` selects one of them; by default it is the first.
            If a rate cannot be met, nothing is answered. The thresholds of groups are reported but not applied.
        """
        request = CertificateRequest.of(maxError, delta, by, certificateGrid)
        if not request.max_error:
            raise RequestError("maxError must hold at least one error rate")
        _, *selective = certified(self, ratings, request)
        return with_certificates(self, selective, instead_of=[SELECTIVE])

    @property
    def headline(self) -> str | None:
        """The sentence of the first certificate. None if nothing was certified."""
        return headline_of(self.certificate)

    # ---- the folder --------------------------------------------------------------------------------------------------

    def exportVectors(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write vectors whose inner product is the score, for any nearest-neighbour index (docs/serving.md).

        The folder has two Parquet tables, ``users`` and ``items``, with the columns ``id`` and ``vector``: [L, 1, b] of
        a user, [R, d, 1] of an item, or L and R without intercepts. It appears whole or not at all.

        Parameters
        ----------
        path : str or path
            The folder to write.
        overwrite : bool
            Whether a folder that is there is replaced.
        """
        export_vectors(self, path, overwrite)

    def write(self) -> ModelWriter:
        return ModelWriter(self)

    @classmethod
    def read(cls) -> ModelReader:
        return ModelReader(cls)
