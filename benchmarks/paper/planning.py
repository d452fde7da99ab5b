"""Planning, before any rating is collected: the paper's explicit bounds, and how many ratings a
given risk needs.

There are m1 × m2 cells, and m = m1 + m2. The matrix M has rank at most r ≤ K, and the entries of
its factors are at most ℓ in absolute value. q = K − r and d = r/(Kn). The complexity term of the
explicit lemmas is repaired (docs/MATH.md, §11 and §12, number 3)::

    E = (1/n)[(2/π)(r/n + q) + √(8/π) rℓ] + (m/2λ)[r(n⁻² + ℓ² + d + 2 log n − 1) + qr/K]
        + (1/λ){K[log(Kn/r) + lnΓ(α) − α log β] + T}

    T   inverse-Gamma      r[(α+1)d + β] + q[(α+1)(r/K − log n) + nβ]
        Gamma, α ≥ 1       rβ(1+d) + q[(α−1) log n + β(1/n + d)]
        Gamma, α < 1       r[(1−α)d + β(1+d)] + q[(1−α)(r/K − log n) + β(1/n + d)]
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from scipy.special import gammaln

from onebit_spark.core.priors import PRIORS

BOUNDS = ("corollary1", "theorem2", "corollary2")
MOST_RATINGS = 10**15


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A bound for n ratings.

    Parameters
    ----------
    n : int
        Number of ratings.
    bound : float
        The bound on the risk.
    lam : float
        λ: the best one for this n, unless it was given.
    which : {"corollary1", "theorem2", "corollary2"}
        Which bound. ``theorem2`` and ``corollary2`` hold under assumptions about the noise.
    """

    n: int
    bound: float
    lam: float
    which: str


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The arguments of the explicit bounds besides n and λ: r is ``rank``, ℓ is ``max_entry``, K is
    ``budget``.
    """

    m1: int
    m2: int
    rank: int
    max_entry: float
    budget: int
    prior: str
    alpha: float
    beta: float

    def problems(self) -> list[str]:
        """All problems, in words."""
        problems = []
        if min(self.m1, self.m2, self.rank) < 1:
            problems.append(
                f"m1, m2 and rank must be at least 1, not {self.m1}, {self.m2}, {self.rank}"
            )
        if self.rank > min(self.m1, self.m2):
            problems.append(f"a matrix of {self.m1} × {self.m2} has no rank {self.rank}")
        if self.budget < self.rank:
            problems.append(f"the budget K = {self.budget} must be at least the rank {self.rank}")
        if self.prior not in PRIORS:
            problems.append(f"prior must be one of {', '.join(PRIORS)}, not {self.prior!r}")
        for name in ("max_entry", "alpha", "beta"):
            if not 0 < getattr(self, name) < math.inf:
                problems.append(
                    f"{name} must be a positive finite number, not {getattr(self, name)!r}"
                )
        return problems

    def complexity(self, n: int, lam: float) -> float:
        """E, for λ ≤ n."""
        r = self.rank
        big = self.budget
        entry = self.max_entry
        a = self.alpha
        b = self.beta
        q = big - r
        d = r / (big * n)
        log_n = math.log(n)
        data = ((2 / math.pi) * (r / n + q) + math.sqrt(8 / math.pi) * r * entry) / n
        rows = (
            (self.m1 + self.m2)
            / (2 * lam)
            * (r * (n**-2 + entry**2 + d + 2 * log_n - 1) + q * r / big)
        )
        if self.prior == "inverse-gamma":
            t = r * ((a + 1) * d + b) + q * ((a + 1) * (r / big - log_n) + n * b)
        elif a >= 1:
            t = r * b * (1 + d) + q * ((a - 1) * log_n + b * (1 / n + d))
        else:
            t = r * ((1 - a) * d + b * (1 + d)) + q * (
                (1 - a) * (r / big - log_n) + b * (1 / n + d)
            )
        scales = big * (math.log(big * n / r) + float(gammaln(a)) - a * math.log(b)) + t
        return data + rows + scales / lam


def corollary1(setup: Setup, n: int, lam: float, risk: float, delta: float) -> float:
    """r_h(M) + E + λ/(2n) + log(1/δ)/λ with probability 1 − δ; ``risk`` is the hinge risk r_h of
    the best M.
    """
    return risk + setup.complexity(n, lam) + lam / (2 * n) + math.log(1 / delta) / lam


def theorem2(setup: Setup, n: int, s: float, margin: float, risk: float, delta: float) -> float:
    """R̄[1 + (1+s)/(1−s/2)] + {E + (1+C) log(1/ε)/(sn)}/(1−s/2), λ = sn/C, with probability 1 − 2ε
    = 1 − δ.

    C is the margin constant of the noise (switch noise of probability p has 1/(1−2p)), R̄ the Bayes
    risk.
    """
    rest = 1 - s / 2
    error = setup.complexity(n, s * n / margin) + (1 + margin) * math.log(2 / delta) / (s * n)
    return risk * (1 + (1 + s) / rest) + error / rest


def corollary2(setup: Setup, n: int, lam: float, delta: float) -> float:
    """{E + log(1/ε)/λ}/(1 − λ/(2n)), λ ≤ n, with probability 1 − ε = 1 − δ, for labels without
    noise.
    """
    return (setup.complexity(n, lam) + math.log(1 / delta) / lam) / (1 - lam / (2 * n))


def plan(
    m1: int,
    m2: int,
    rank: int,
    max_entry: float,
    risk: float | None = None,
    *,
    n: int | None = None,
    which: Literal["corollary1", "theorem2", "corollary2"] = "corollary1",
    best_risk: float = 0.0,
    switch_noise: float = 0.0,
    budget: int | None = None,
    prior: str = "gamma",
    alpha: float = 1.0,
    beta: float | None = None,
    lam: float | None = None,
    delta: float = 0.05,
) -> Plan:
    """How many ratings make the bound at most ``risk``; or, with ``n``, the bound for n ratings
    (docs/MATH.md, §11).

    Parameters
    ----------
    m1, m2 : int
        Rows and columns of the matrix.
    rank : int
        r, the rank of the matrix.
    max_entry : float
        ℓ, the largest entry of its factors in absolute value.
    risk : float, optional
        The wanted bound. Give either ``risk`` or ``n``.
    n : int, optional
        Number of ratings.
    which : {"corollary1", "theorem2", "corollary2"}
        Which bound of the paper.
    best_risk : float
        The risk that no predictor of this rank can beat: its hinge risk (corollary1) or the Bayes
        risk (theorem2).
    switch_noise : float
        Probability that a label is switched.
    budget : int, optional
        K. Default: the rank.
    prior : {"gamma", "inverse-gamma"}
        π^γ.
    alpha, beta : float
        α and β of the prior. β defaults to 1 for gamma and to 1/n for inverse-gamma, where with a
        constant β the term Knβ/λ would not vanish.
    lam : float, optional
        λ. Default: the one with the smallest bound.
    delta : float
        δ.

    Returns
    -------
    Plan
        Number of ratings and bound.

    >>> plan(1000, 500, rank=3, max_entry=1.0, n=10**6).bound < 1
    True
    >>> plan(1000, 500, rank=3, max_entry=1.0, risk=0.3).n > 10**5
    True
    """
    setup = Setup(
        m1=m1,
        m2=m2,
        rank=rank,
        max_entry=max_entry,
        budget=rank if budget is None else budget,
        prior=prior,
        alpha=alpha,
        beta=1.0 if beta is None else beta,
    )
    question = _Question(
        setup, which, best_risk, switch_noise, lam, delta, beta is None and prior == "inverse-gamma"
    )
    problems = setup.problems()
    if (risk is None) == (n is None):
        problems.append(
            "give either risk (how many ratings does it need?) or n (what is the bound?)"
        )
    if risk is not None and not risk > 0:
        problems.append(f"risk must be positive, not {risk!r}")
    if n is not None and n < 2:
        problems.append(f"n must be at least 2, not {n!r}")
    problems += question.problems()
    if problems:
        raise ValueError("; ".join(problems))
    if n is None:
        assert risk is not None
        return question.enough(risk)
    if n < question.fewest:
        raise ValueError(
            f"λ = {lam:g} is too large for n = {n:,}: {which} holds for it from n = "
            f"{question.fewest:,} on"
        )
    return question.at(n)


@dataclass(frozen=True)
class _Question:
    """Which bound, under which assumptions. ``small_beta``: β is 1/n."""

    setup: Setup
    which: str
    best_risk: float
    switch_noise: float
    lam: float | None
    delta: float
    small_beta: bool

    def problems(self) -> list[str]:
        """All problems besides those of the setup, in words."""
        problems = []
        if self.which not in BOUNDS:
            problems.append(f"which must be one of {', '.join(BOUNDS)}, not {self.which!r}")
        if self.which == "corollary2" and (self.best_risk or self.switch_noise):
            problems.append(
                "corollary2 is for labels without noise: best_risk and switch_noise must be 0"
            )
        if not 0 <= self.switch_noise < 0.5:
            problems.append(f"switch_noise must lie in [0, 0.5), not {self.switch_noise!r}")
        if not self.best_risk >= 0:
            problems.append(f"best_risk must be 0 or above, not {self.best_risk!r}")
        if self.lam is not None and not 0 < self.lam < math.inf:
            problems.append(f"λ must be a positive finite number, not {self.lam!r}")
        if not 0 < self.delta < 1:
            problems.append(f"delta must lie strictly between 0 and 1, not {self.delta!r}")
        return problems

    @property
    def margin(self) -> float:
        """C."""
        return 1 / (1 - 2 * self.switch_noise)

    @property
    def fewest(self) -> int:
        """The smallest n that the bound holds for: λ ≤ n, or λ < n/C for ``theorem2``,
        where s < 1.
        """
        if self.lam is None:
            return 2
        return max(
            2,
            math.floor(self.lam * self.margin) + 1
            if self.which == "theorem2"
            else math.ceil(self.lam),
        )

    def at(self, n: int) -> Plan:
        """The bound at the given λ, or at the best λ of a fine grid."""
        setup = replace(self.setup, beta=1.0 / n) if self.small_beta else self.setup
        largest = float(n) if self.which != "theorem2" else n / self.margin * (1 - 1e-3)  # s < 1
        candidates = (
            [self.lam] if self.lam is not None else [largest * 2.0 ** (-j / 8) for j in range(160)]
        )

        def value(lam: float) -> float:
            if self.which == "corollary1":
                return corollary1(setup, n, lam, self.best_risk, self.delta)
            if self.which == "theorem2":
                return theorem2(
                    setup, n, lam * self.margin / n, self.margin, self.best_risk, self.delta
                )
            return corollary2(setup, n, lam, self.delta)

        bound, best = min((value(lam), lam) for lam in candidates)
        return Plan(n=n, bound=bound, lam=best, which=self.which)

    def enough(self, risk: float) -> Plan:
        """The smallest n with a bound of at most ``risk``, by bisection."""
        low = self.fewest
        high = 2 * self.fewest
        if self.at(low).bound <= risk:
            return self.at(low)
        while self.at(high).bound > risk:
            low = high
            high = 2 * high
            if high > MOST_RATINGS:
                limit = {"corollary1": self.best_risk, "theorem2": 2 * self.best_risk}.get(
                    self.which, 0.0
                )
                raise ValueError(
                    f"no number of ratings up to {MOST_RATINGS:.0e} brings the bound down to "
                    f"{risk:g}: it tends to at "
                    f"least {limit:g}, and a fixed λ or β may keep it above that"
                )
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.at(middle).bound > risk else (low, middle)
        return self.at(high)
