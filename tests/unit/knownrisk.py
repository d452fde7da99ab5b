"""Many small fits on data whose true risk is known: how often is each certificate wrong, and how loose is it?

    python tests/unit/knownrisk.py        # prints the tables, 400 fits each

A sign matrix of rank 2, 40 × 30 unless said otherwise. Ratings are drawn *with* replacement: row and column
independently, popular ones far more often than others, so that many cells are rated several times and some rows never.
Labels are switched with probability p. So the risk of any predictor is p + (1 − 2p)·P(it has the wrong sign), over the
cells as they are sampled.

Everything is done as a user would do it: the draws are those of ``Fit.sample``, the predictions those of
``Fit.predict``, and each risk is taken over the distribution that the certificate's ``over`` names. A coin per cell
holds ratings out, so what they certify is the distribution of ratings of held-out cells.
"""

import warnings
from dataclasses import dataclass, replace

import numpy as np

from onebit_spark import FitConfig, NotConverged, Terms, fit_arrays
from onebit_spark.certificate import bounds
from onebit_spark.certificate.certificates import holdout_certificate

SHAPE = (40, 30)
SEEDS = 60  # draws of every cell: the true risk is known to about .001
HELD_OUT = 0.25


@dataclass(frozen=True)
class World:
    """Signs of all cells, how often each is sampled, and how often a label is switched."""

    shape: tuple
    signs: np.ndarray
    law: np.ndarray
    switch: float

    @classmethod
    def drawn(cls, rng, switch, shape=SHAPE):
        left, right = rng.normal(size=(shape[0], 2)), rng.normal(size=(shape[1], 2))
        popular = [rng.permutation(1.0 / np.arange(1, size + 1)) for size in shape]
        law = np.outer(*popular).ravel()
        return cls(shape, np.where(left @ right.T > 0, 1, -1).ravel(), law / law.sum(), switch)

    @property
    def pairs(self):
        """Row and column of every cell."""
        return tuple(index.ravel() for index in np.indices(self.shape))

    def ratings(self, rng, n):
        cells = rng.choice(self.law.size, size=n, p=self.law)
        return cells, self.signs[cells] * np.where(rng.random(n) < self.switch, -1, 1)

    def risk(self, wrong, among=None):
        """Of a predictor that has the wrong sign in cell c with probability wrong[c]; ``among`` restricts the cells."""
        law = self.law if among is None else self.law * among
        return self.switch + (1 - 2 * self.switch) * float(np.dot(law, wrong) / law.sum())


def drawn_wrong(fit, world):
    """How often a draw has the wrong sign, cell by cell, through the interface that users have."""
    return np.mean([fit.sample(*world.pairs, seed=seed) * world.signs <= 0 for seed in range(SEEDS)], axis=0)


def one_fit(world, rng, n, config, terms):
    """(name, bound, true risk) of every certificate of one fit, and of three that are broken on purpose.

    "no-kl" is seeger with the KL left out; "wide draws" are draws with the spreads that ``std`` tells, beside the bound
    of the prior split; "fitted" is the holdout's bound from ratings that were fitted.
    """
    cells, labels = world.ratings(rng, n)
    rows, cols = (index[cells] for index in world.pairs)
    coin = rng.random(world.signs.size) < HELD_OUT  # thrown per cell, before any rating is looked at
    held = coin[cells]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConverged)
        fit = fit_arrays(rows[~held], cols[~held], labels[~held], config, world.shape, threads=1, certify=terms)
    lines = []
    # The fit's own ratings are a sample of the cells that the coin left in.
    gibbs = world.risk(drawn_wrong(fit, world), ~coin)
    for item in fit.certificates:
        lines.append((item.name, item.bound, gibbs))
        if item.name == "seeger":
            lines.append(("no-kl", bounds.seeger(item.inputs["gibbs_risk"], 0.0, item.n, terms.delta), gibbs))
        if item.name == "prior_split":
            users, items = (replace(side, certified=None) for side in (fit.users, fit.items))
            as_told = replace(fit, users=users, items=items, info=replace(fit.info, draw_narrowing=None))
            lines.append(("wide draws", item.bound, world.risk(drawn_wrong(as_told, world), ~coin)))
    wrong = fit.predict(rows, cols) != labels
    mean = world.risk(fit.predict(*world.pairs) != world.signs, coin)
    for name, part in (("holdout", held), ("fitted", ~held)):
        bound = holdout_certificate(int(wrong[part].sum()), int(part.sum()), terms, 0.5).bound
        lines.append((name, bound, mean))
    return lines


def answering_fit(world, rng, n, config, delta, requests):
    """(name, bound, true risk) of what held-out ratings certify: two requests, and both within two groups of columns.

    Requests and groups share δ, so each name has one line: that of the certificate that is closest to being wrong.
    "peeking" is broken on purpose: it takes its threshold after a look at the held-out ratings.
    """
    cells, labels = world.ratings(rng, n)
    rows, cols = (index[cells] for index in world.pairs)
    coin = rng.random(world.signs.size) < 0.5
    held = coin[cells]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConverged)
        fit = fit_arrays(rows[~held], cols[~held], labels[~held], config, world.shape, threads=1)
    wrong, group = fit.predict(*world.pairs) != world.signs, world.pairs[1] % 2
    sure = fit.confidence(*world.pairs)

    def risk(item):
        among = coin & (sure >= item.inputs.get("threshold", 0.0))
        if item.inputs.get("group"):
            among &= group == int(item.inputs["group"]["value"])
        return world.risk(wrong, among) if np.any(among) else 0.0

    def closest(items):
        return max(((item.bound, risk(item)) for item in items), key=lambda pair: pair[1] - pair[0], default=(1.0, 0.0))

    given = rows[held], cols[held], labels[held]
    found = fit.certify(*given, Terms(delta=delta), max_error=requests, groups=cols[held] % 2)
    found = [item for item in found if item.name == "holdout" or item.inputs["threshold"] is not None]
    parts = {
        "selective": [item for item in found if item.name == "selective" and not item.inputs["group"]],
        "selective by group": [item for item in found if item.name == "selective" and item.inputs["group"]],
        "holdout by group": [item for item in found if item.name == "holdout" and item.inputs.get("group")],
    }
    lines = [(name, *closest(items)) for name, items in parts.items()]
    return [*lines, ("peeking", *peeking(fit, *given, requests[-1], world, coin))]


def peeking(fit, rows, cols, labels, request, world, coin):
    """(request, true risk) at the threshold that answers most with an *observed* error within the request."""
    sure, wrong = fit.confidence(rows, cols), fit.predict(rows, cols) != labels
    order = np.argsort(-sure)
    rates = np.cumsum(wrong[order]) / np.arange(1, len(order) + 1)
    within = np.flatnonzero(rates <= request)
    if not len(within):
        return request, 0.0
    among = coin & (fit.confidence(*world.pairs) >= sure[order[within[-1]]])
    return request, world.risk(fit.predict(*world.pairs) != world.signs, among)


def answering(config, n, switch, repeats, delta, requests, seed=0):
    """All lines of ``answering_fit`` for many worlds."""
    rng, lines = np.random.default_rng(seed), []
    for repeat in range(repeats):
        world = World.drawn(rng, switch)
        lines += answering_fit(world, rng, n, replace(config, seed=repeat), delta, requests)
    return lines


def experiment(config, n, switch, repeats, terms, seed=0, shape=SHAPE):
    """All lines of ``one_fit`` for many worlds."""
    rng, lines = np.random.default_rng(seed), []
    for repeat in range(repeats):
        lines += one_fit(World.drawn(rng, switch, shape), rng, n, replace(config, seed=repeat), terms)
    return lines


def summary(lines):
    """name ─► (share of violations, median of bound over risk)."""
    found = {}
    for name in dict.fromkeys(name for name, _, _ in lines):
        bound, risk = np.array([(b, r) for other, b, r in lines if other == name]).T
        with np.errstate(divide="ignore"):  # nothing was answered
            found[name] = float(np.mean(risk > bound)), float(np.median(bound / risk))
    return found


def show(title, lines):
    for name, (violated, loose) in summary(lines).items():
        print(f"{title:12} {name:18} violated {violated:.3f}   bound/risk {loose:.2f}", flush=True)


if __name__ == "__main__":
    for loss in ("hinge", "logistic"):
        for terms in (Terms(delta=0.2), Terms(delta=0.2, prior_split=0.5)):
            show(
                loss,
                experiment(FitConfig(loss=loss, rank=3, max_iter=30, implicit_features=False), 2000, 0.1, 400, terms),
            )
    show("answers", answering(FitConfig(rank=3, max_iter=30), 4000, 0.05, 400, 0.2, (0.15, 0.1)))
    noisy = FitConfig(rank=10, likelihood_weight=8.0, max_iter=30, implicit_features=False)
    show("noise", experiment(noisy, 2000, 0.5, 400, Terms(delta=0.2)))
    for features in (True, False):
        defaults = FitConfig(implicit_features=features)
        for terms in (Terms(delta=0.2), Terms(delta=0.2, prior_split=0.5)):
            lines = experiment(defaults, 14000, 0.1, 400, terms, shape=(100, 80))
            show("defaults" if features else "no features", lines)
