"""BlockEngine: every work of a fit, by the two ways in which ``Blocks`` run one."""

from __future__ import annotations

from functools import reduce
from typing import Generic

import numpy as np

from onebit_spark.core.losses import Loss, Side
from onebit_spark.core.posterior import FloatArray
from onebit_spark.core.statistics import SideStatistics
from onebit_spark.core.work import (
    HalfStepInputs,
    MeasureSpreads,
    RatingWork,
    RowMapping,
    RowSum,
    UpdateRows,
)
from onebit_spark.engines.base import S, T
from onebit_spark.engines.blocks import Blocks, Table
from onebit_spark.engines.layout import RowLayout, Sending, send_vectors
from onebit_spark.engines.start import grow_posteriors, start_posteriors
from onebit_spark.settings import FitConfig


class BlockEngine(Blocks, Generic[T]):
    def start(self, config: FitConfig, loss: Loss) -> dict[Side, T]:
        return start_posteriors(self, config, loss)

    def grow(self, tables: dict[Side, T], config: FitConfig, loss: Loss) -> dict[Side, T]:
        return grow_posteriors(self, tables, config, loss)

    def half_step(
        self,
        update: UpdateRows,
        inputs: HalfStepInputs[T],
    ) -> tuple[T, SideStatistics]:
        side = update.step.side
        form = inputs.rows.form
        own = self._own(side, inputs.rows, inputs.features)
        send = None
        if form.vectors:
            send = Sending(send_vectors, RowLayout.of(inputs.others.form.sent))
        rows, parts = self.run(side, update, own, RowLayout.of(form), inputs.others, send)
        statistics = [SideStatistics.from_vector(part, form) for part in parts]
        return rows, reduce(SideStatistics.__add__, statistics)

    def data_term(self, summed: float) -> float:
        return summed

    def over_ratings(self, work: RatingWork[S], rows: T, cols: T) -> S:
        return work.result(np.sum(self.total("rows", work, {"rows": rows}, cols), axis=0))

    def sum_rows(self, work: RowSum[S], side: Side, table: T) -> S:
        return work.result(np.sum(self.total(side, work, {"rows": table}), axis=0))

    def map_rows(
        self,
        work: RowMapping,
        side: Side,
        table: T,
        features: FloatArray | None = None,
    ) -> T:
        layout = RowLayout.of(work.form_of(table.form))
        mapped: T = self.run(side, work, self._own(side, table, features), layout)[0]
        return mapped

    def measure(self, work: MeasureSpreads, side: Side, rows: T, others: T) -> Table:
        return self.run(side, work, {"rows": rows}, RowLayout("float32"), others)[0]

    def _own(self, side: Side, rows: T, features: FloatArray | None) -> dict[str, Table]:
        """The tables that a work reads of its own side."""
        if features is None:
            return {"rows": rows}
        return {"rows": rows, "features": self.feature_table(side, features)}

    def feature_table(self, side: Side, features: FloatArray) -> Table:
        return features
