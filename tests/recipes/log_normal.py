"""A third prior, as docs/ARCHITECTURE.md says: this file in onebit_spark/core/priors/, and nothing
else.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, wrightomega

from onebit_spark.core.prior import ScalePrior

NODES = 801


@dataclass(frozen=True)
class LogNormal(ScalePrior):
    """log γ ~ N(log β, 1/α).

    With ω = W(S e^{−c}/(2α)) and c = log β − m/(2α), the density of x = log γ under ρ has its peak
    at c + ω. At the distance d from it, its logarithm has fallen by αd²/2 + αω(e^{−d} − 1 + d).
    """

    @staticmethod
    def beta_for_scale(alpha, scale):
        return scale

    @property
    def smallest_second_moment(self):
        return 1e-200  # for a smaller one E[1/γ] may overflow

    def _nodes(self, s, m):
        """The peak, αω, distances from the peak, and the density there relative to that of the
        peak.
        """
        s = np.asarray(s)[..., None]
        m = np.asarray(m)[..., None]
        c = np.log(self.beta) - m / (2 * self.alpha)
        omega = wrightomega(np.log(s / (2 * self.alpha)) - c)
        pull = self.alpha * omega

        def fall(d):
            return self.alpha * d**2 / 2 + pull * (np.expm1(-d) + d)

        edges = []
        for sign in (-1, 1):
            edge = sign / np.sqrt(self.alpha + pull)
            while np.any(fall(edge) < 40):
                edge = np.where(fall(edge) < 40, 1.1 * edge, edge)
            edges.append(edge)
        d = edges[0] + (edges[1] - edges[0]) * np.linspace(0, 1, NODES)
        return (c + omega)[..., 0], pull[..., 0], d, np.exp(-fall(d))

    def log_normaliser(self, s, m):
        peak, pull, d, density = self._nodes(s, m)
        height = -self.alpha * (peak - np.log(self.beta)) ** 2 / 2 - m * peak / 2 - pull
        width = d[..., 1] - d[..., 0]
        return height + np.log(np.sum(density, axis=-1) * width * np.sqrt(self.alpha / (2 * np.pi)))

    def inverse_mean(self, s, m):
        peak, _, d, density = self._nodes(s, m)
        return np.exp(-peak) * np.sum(density * np.exp(-d), axis=-1) / np.sum(density, axis=-1)

    def quantile(self, s, m, u):
        peak, _, d, density = self._nodes(s, m)
        columns = []
        for k in range(len(peak)):
            share = np.cumsum(density[k]) - density[k] / 2
            normal = ndtri(share / np.sum(density[k]))  # nearly a line, which is interpolated well
            inside = np.isfinite(normal)
            columns.append(
                np.exp(peak[k] + np.interp(ndtri(u[..., k]), normal[inside], d[k][inside]))
            )
        return np.stack(columns, axis=-1)
