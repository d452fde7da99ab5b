"""LabelNoise: the probabilities of a fit, calibrated on ratings that it has not seen (docs/MATH.md, §14).

    P(y) = ε/2 + (1 − ε) σ(τ y z),     z = score/√(1 + π·variance/8)

ε is the share of labels that say nothing, τ a temperature. Signs and order of the scores stay, and ½ stays at score 0.
Each is used only if it lowers the loss of these ratings by more than the standard error of what it gains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from onebit_spark.core.calibration import Calibration, least
from onebit_spark.core.left_out import LeftOut, margin_of_bins
from onebit_spark.core.posterior import DoubleArray

MOST_NOISE = 0.5
FARTHEST, KNOTS = 40.0, 161  # of the piecewise linear function that stores it: to where, and how many


@dataclass(frozen=True)
class LabelNoise:
    """ε and τ."""

    noise: float  # ε
    temperature: float  # τ

    @classmethod
    def of_left_out(cls, left_out: LeftOut, score_noise: float) -> LabelNoise | None:
        """The best ε and τ for the margins of ratings that were left out. None: the plain link is as good."""
        if not left_out.weight > 0:
            return None
        z, shares = margin_of_bins() * math.sqrt(score_noise), left_out.margins / left_out.weight

        def losses(told: LabelNoise) -> DoubleArray:
            return -np.log(told.probability(z))

        def fitted(with_noise: bool) -> LabelNoise:
            def loss(x: DoubleArray) -> tuple[float, DoubleArray]:
                told = cls(float(x[1]) if with_noise else 0.0, math.exp(x[0]))
                p, s = told.probability(z), expit(told.temperature * z)
                by_temperature = (1 - told.noise) * s * (1 - s) * told.temperature * z
                slopes = [by_temperature, 0.5 - s] if with_noise else [by_temperature]
                return float(shares @ losses(told)), np.array([-(shares @ (slope / p)) for slope in slopes])

            x = least(loss, np.array([0.0, 0.05][: 1 + with_noise]), [(-3.0, 3.0), (0.0, MOST_NOISE)][: 1 + with_noise])
            return cls(float(x[1]) if with_noise else 0.0, float(np.exp(x[0])))

        def pays(told: LabelNoise, before: LabelNoise) -> bool:
            gain = losses(before) - losses(told)
            mean = shares @ gain
            return bool(mean > math.sqrt(shares @ (gain - mean) ** 2 / left_out.n))

        best = plain = cls(0.0, 1.0)
        for with_noise in (False, True):
            candidate = fitted(with_noise)
            if pays(candidate, best):
                best = candidate
        return None if best is plain else best

    def probability(self, z: DoubleArray) -> DoubleArray:
        """P of the label of this sign, from its margin z."""
        return np.asarray(0.5 * self.noise + (1.0 - self.noise) * expit(self.temperature * z))

    def calibration(self, score_noise: float) -> Calibration:
        """The same as a piecewise linear function of score/√(c + variance), c the noise of the score."""
        scale = math.sqrt(score_noise)
        if self.noise == 0:
            knots = np.array([-FARTHEST, FARTHEST])
            return Calibration(score_noise, knots.tolist(), (self.temperature * scale * knots).tolist())
        inner = np.linspace(-1.0, 1.0, KNOTS)
        knots = FARTHEST * inner**3 / (self.temperature * scale)  # denser around 0
        p = self.probability(scale * knots)
        return Calibration(score_noise, knots.tolist(), (np.log(p) - np.log1p(-p)).tolist())
