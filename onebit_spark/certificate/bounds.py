"""Upper limits on the error rate that hold with probability 1 − δ: each a pure function of a few numbers.

For *any* posterior ρ (of either loss) and a prior π fixed before the labels were seen, over an i.i.d. sample of n
ratings. ∫R dρ is the Gibbs risk: how often a fresh draw from ρ errs on a new rating. ``holdout`` bounds another
predictor, the sign of the mean score, the one that users call. An error is y·score ≤ 0: under the paper's strict "<"
the zero matrix would never err.

Never 2 × Gibbs for the mean predictor: that is an argument about majority votes, and sign(E[u]) is none.
"""

from __future__ import annotations

import math

from scipy.stats import beta

from onebit_spark.core.special import kl_inverse

# λ/n that `catoni_over_grid` tries: declared here, before any data, and paid for by a union bound.
CATONI_GRID = tuple(2.0 ** (j / 2) for j in range(-14, 5))


def theorem1(avb: float, n: int, lam: float, delta: float) -> float:
    """Theorem 1 of the paper: AVB(ρ) + λ/(2n) + log(1/δ)/λ, for a λ fixed in advance; hinge loss only.

    AVB holds the hinge risk of ρ and KL(ρ‖π)/λ, so no draws are needed. At κ = λ/n ≥ 2 it exceeds 1 by construction.
    """
    _check(n=n, delta=delta, lam=lam)
    return avb + lam / (2 * n) + math.log(1 / delta) / lam


def catoni(gibbs_risk: float, kl: float, n: int, lam: float, delta: float) -> float:
    """∫r_n dρ + KL/λ + λ/(8n) + log(1/δ)/λ (Catoni, 2007), with Hoeffding's constant, for a λ fixed in advance."""
    _check(n=n, delta=delta, lam=lam, risk=gibbs_risk, kl=kl)
    return gibbs_risk + kl / lam + lam / (8 * n) + math.log(1 / delta) / lam


def catoni_over_grid(gibbs_risk: float, kl: float, n: int, delta: float) -> tuple[float, float]:
    """The best of ``catoni`` over the λ of CATONI_GRID, each at δ/|grid|; and the λ that gives it."""
    share = delta / len(CATONI_GRID)
    return min((catoni(gibbs_risk, kl, n, ratio * n, share), ratio * n) for ratio in CATONI_GRID)


def seeger(gibbs_risk: float, kl: float, n: int, delta: float) -> float:
    """kl⁻¹(∫r_n dρ ; (KL + log(2√n/δ))/n) (Seeger, 2002; Maurer, 2004).

    It holds for all ρ at once, so whatever shapes ρ alone, the weight κ of the fit for one, may be tuned freely.
    """
    _check(n=n, delta=delta, risk=gibbs_risk, kl=kl)
    return float(kl_inverse(gibbs_risk, (kl + math.log(2 * math.sqrt(n) / delta)) / n))


def prior_split(gibbs_risk: float, kl: float, n: int, delta: float) -> float:
    """``seeger`` on the n ratings B that the prior has not seen, the prior being learnt from the others, A.

    It holds because, given A, the prior is fixed and B is an i.i.d. sample that is independent of it; ρ may depend on
    A and B, for the bound holds for all ρ at once. So n counts B, the Gibbs risk is taken on B, and KL is to the learnt
    prior. Anything may be tuned on A; the fraction is declared before.
    """
    return seeger(gibbs_risk, kl, n, delta)


def holdout(errors: int, n: int, delta: float) -> float:
    """The largest error probability that makes ``errors`` or fewer among n at least as likely as δ: exact, binomial.

    Beta⁻¹(1−δ; k+1, n−k), and 1 for k = n (Clopper and Pearson, 1934). It bounds the mean predictor of a model that
    never saw these n ratings.
    """
    _check(n=n, delta=delta)
    if not 0 <= errors <= n:
        raise ValueError(f"errors must lie in 0 … {n}, not {errors}")
    return 1.0 if errors == n else float(beta.isf(delta, errors + 1, n - errors))


def gibbs_limit(errors: int, draws: int, delta: float) -> float:
    """kl⁻¹(errors/draws ; log(1/δ)/draws): above the mean of the draws' error probabilities, with probability 1 − δ.

    Chernoff's bound, which holds for independent trials of unequal probabilities; Clopper and Pearson's does not.
    """
    _check(n=draws, delta=delta)
    return float(kl_inverse(errors / draws, math.log(1 / delta) / draws))


def _check(*, n: int, delta: float, lam: float = 1.0, risk: float = 0.0, kl: float = 0.0) -> None:
    """One ValueError for all that makes a bound meaningless."""
    problems = []
    if not n >= 1:
        problems.append(f"a bound needs at least one rating, not n = {n}")
    if not 0 < delta < 1:
        problems.append(f"delta must lie strictly between 0 and 1, not {delta!r}")
    if not 0 < lam < math.inf:
        problems.append(f"λ must be a positive finite number, not {lam!r}")
    if not 0 <= risk <= 1:
        problems.append(f"a risk must lie in [0, 1], not {risk!r}")
    if not 0 <= kl < math.inf:
        problems.append(f"a divergence must be a finite number, 0 or above, not {kl!r}")
    if problems:
        raise ValueError("; ".join(problems))
