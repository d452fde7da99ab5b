"""Many small fits on data whose true risk is known: how often is each certificate wrong, and how
loose is it?

    python tests/support/knownrisk.py                   # prints the tables, 400 fits each
    python tests/support/knownrisk.py precision [SEED [REPEATS [WORLD]]] [--save]      # of precisions; 1000 fits each

A sign matrix of rank 2, 40 × 30 and half positive unless said otherwise. Ratings are drawn *with*
replacement: row and column independently, popular ones far more often than others, so that many
cells are rated several times and some rows never. Labels are switched with probability p. So the
risk of any predictor is p + (1 − 2p)·P(it has the wrong sign), over the cells as they are sampled.

Everything is done as a user would do it: the draws are those of ``Fit.sample``, the predictions
those of ``Fit.predict``, and each risk is taken over the distribution that the certificate's
``over`` names. A coin per cell holds ratings out, so what they certify is the distribution of
ratings of held-out cells.
"""

import sys
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from scipy.special import bdtr, betaincinv

from onebit_spark import FitConfig, NotConverged, Terms, fit_arrays, fit_table
from onebit_spark.certify import bounds
from onebit_spark.certify.certificates import holdout_certificate
from onebit_spark.data.hashes import coin_drawn

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
    def drawn(cls, rng, switch, shape=SHAPE, positive=None, popularity=1.0):
        """``positive`` is the share of positive cells, as they are sampled; row and column k are ∝
        k^−popularity.
        """
        left = rng.normal(size=(shape[0], 2))
        right = rng.normal(size=(shape[1], 2))
        popular = [rng.permutation(np.arange(1.0, size + 1) ** -popularity) for size in shape]
        law = np.outer(*popular).ravel()
        law = law / law.sum()
        scores = (left @ right.T).ravel()
        order = np.argsort(-scores)
        least = (
            0.0
            if positive is None
            else scores[order[np.searchsorted(np.cumsum(law[order]), positive)]]
        )
        return cls(shape, np.where(scores > least, 1, -1), law, switch)

    @property
    def positive(self):
        """The probability that a rating of the cell is positive."""
        return np.where(self.signs > 0, 1 - self.switch, self.switch)

    @property
    def pairs(self):
        """Row and column of every cell."""
        return tuple(index.ravel() for index in np.indices(self.shape))

    def ratings(self, rng, n):
        cells = rng.choice(self.law.size, size=n, p=self.law)
        return cells, self.signs[cells] * np.where(rng.random(n) < self.switch, -1, 1)

    def risk(self, wrong, among=None):
        """Of a predictor that has the wrong sign in cell c with probability wrong[c]; ``among``
        restricts the cells.
        """
        law = self.law if among is None else self.law * among
        return self.switch + (1 - 2 * self.switch) * float(np.dot(law, wrong) / law.sum())


def drawn_wrong(fit, world):
    """How often a draw has the wrong sign, cell by cell, through the interface that users have."""
    return np.mean(
        [fit.sample(*world.pairs, seed=seed) * world.signs <= 0 for seed in range(SEEDS)], axis=0
    )


def one_fit(world, rng, n, config, terms):
    """(name, bound, true risk) of every certificate of one fit, and of two that are broken on
    purpose.

    "no-kl" is seeger with the KL left out; "fitted" is the holdout's bound from ratings that were
    fitted.
    """
    cells, labels = world.ratings(rng, n)
    rows, cols = (index[cells] for index in world.pairs)
    # Thrown per cell, before any rating is looked at
    coin = rng.random(world.signs.size) < HELD_OUT
    held = coin[cells]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConverged)
        fit = fit_arrays(
            rows[~held], cols[~held], labels[~held], config, world.shape, threads=1, certify=terms
        )
    lines = []
    # The fit's own ratings are a sample of the cells that the coin left in.
    gibbs = world.risk(drawn_wrong(fit, world), ~coin)
    for item in fit.certificates:
        lines.append((item.name, item.bound, gibbs))
        if item.name == "seeger":
            lines.append(
                ("no-kl", bounds.seeger(item.inputs["gibbs_risk"], 0.0, item.n, terms.delta), gibbs)
            )
    wrong = fit.predict(rows, cols) != labels
    mean = world.risk(fit.predict(*world.pairs) != world.signs, coin)
    for name, part in (("holdout", held), ("fitted", ~held)):
        bound = holdout_certificate(int(wrong[part].sum()), int(part.sum()), terms, 0.5).bound
        lines.append((name, bound, mean))
    return lines


def answering_fit(world, rng, n, config, delta, requests):
    """(name, bound, true risk) of what held-out ratings certify: two requests, and both within two
    groups of columns.

    Requests and groups share δ, so each name has one line: that of the certificate that is closest
    to being wrong. "peeking" is broken on purpose: it takes its threshold after a look at the
    held-out ratings.
    """
    cells, labels = world.ratings(rng, n)
    rows, cols = (index[cells] for index in world.pairs)
    coin = rng.random(world.signs.size) < 0.5
    held = coin[cells]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConverged)
        fit = fit_arrays(rows[~held], cols[~held], labels[~held], config, world.shape, threads=1)
    wrong = fit.predict(*world.pairs) != world.signs
    group = world.pairs[1] % 2
    sure = fit.confidence(*world.pairs)

    def risk(item):
        among = coin & (sure >= item.inputs.get("threshold", 0.0))
        if item.inputs.get("group"):
            among &= group == int(item.inputs["group"]["value"])
        return world.risk(wrong, among) if np.any(among) else 0.0

    def closest(items):
        return max(
            ((item.bound, risk(item)) for item in items),
            key=lambda pair: pair[1] - pair[0],
            default=(1.0, 0.0),
        )

    given = rows[held], cols[held], labels[held]
    found = fit.certify(*given, Terms(delta=delta), max_error=requests, groups=cols[held] % 2)
    found = [
        item for item in found if item.name == "holdout" or item.inputs["threshold"] is not None
    ]
    parts = {
        "selective": [
            item for item in found if item.name == "selective" and not item.inputs["group"]
        ],
        "selective by group": [
            item for item in found if item.name == "selective" and item.inputs["group"]
        ],
        "holdout by group": [
            item for item in found if item.name == "holdout" and item.inputs.get("group")
        ],
    }
    lines = [(name, *closest(items)) for name, items in parts.items()]
    return [*lines, ("peeking", *peeking(fit, *given, requests[-1], world, coin))]


def peeking(fit, rows, cols, labels, request, world, coin):
    """(request, true risk) at the threshold that answers most with an *observed* error within the
    request.
    """
    sure = fit.confidence(rows, cols)
    wrong = fit.predict(rows, cols) != labels
    order = np.argsort(-sure)
    rates = np.cumsum(wrong[order]) / np.arange(1, len(order) + 1)
    within = np.flatnonzero(rates <= request)
    if not len(within):
        return request, 0.0
    among = coin & (fit.confidence(*world.pairs) >= sure[order[within[-1]]])
    return request, world.risk(fit.predict(*world.pairs) != world.signs, among)


def answering(config, n, switch, repeats, delta, requests, seed=0):
    """All lines of ``answering_fit`` for many worlds."""
    rng = np.random.default_rng(seed)
    lines = []
    for repeat in range(repeats):
        world = World.drawn(rng, switch)
        lines += answering_fit(world, rng, n, replace(config, seed=repeat), delta, requests)
    return lines


# ---- what a user does with a model: a warm start, unknown ids that are not predicted -----------


def warm_fit(world, rng, n, config, terms):
    """(name, bound, true risk) of a short fit with a holdout that starts from a model of nine
    tenths of the ratings.

    "fitted start" is broken on purpose: it certifies on all held-out ratings, also on those that
    the start has learnt.
    """
    cells, labels = world.ratings(rng, n)
    rows, cols = (index[cells] for index in world.pairs)
    coin = coin_drawn(*map(pa.array, world.pairs), config.seed) < np.uint64(round(HELD_OUT * 2**32))
    table = pa.table({"user": rows, "item": cols, "label": labels})
    earlier = int(0.9 * n)
    new = coin & ~np.isin(np.arange(world.law.size), cells[:earlier])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConverged)
        start = fit_table(table.slice(0, earlier), config, threads=1)
        short = replace(config, max_iter=2)
        fit = fit_table(
            table, short, certify=terms, holdout=HELD_OUT, initial_model=start, threads=1
        )
    item = fit.certificates[0]
    held = coin[cells]
    wrong = fit.predict(rows[held], cols[held]) != labels[held]
    risk = fit.predict(*world.pairs) != world.signs
    assert item.n == int(np.sum(new[cells]))
    bound = holdout_certificate(int(wrong.sum()), len(wrong), terms, 0.5).bound
    return [
        ("warm start", item.bound, world.risk(risk, new)),
        ("fitted start", bound, world.risk(risk, coin)),
    ]


EASY = 0.02
FEWER = 0.7  # how often a label of a new item is negative; the share of new items in the ratings


def cold_fit(world, rng, n, config, terms, request):
    """(name, bound, true risk) of what ratings with many easy new items certify, where these are
    not predicted.

    "prior" certificates are broken on purpose: they count the new items, but are read as of what is
    predicted.
    """
    cells, labels = world.ratings(rng, n)
    rows, cols = (index[cells] for index in world.pairs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConverged)
        fit = fit_table(pa.table({"user": rows, "item": cols, "label": labels}), config, threads=1)
    cells, labels = world.ratings(rng, n)
    new = rng.random(n) < FEWER
    items = np.where(new, 1000 + np.arange(n), world.pairs[1][cells])
    given = (
        world.pairs[0][cells],
        items,
        np.where(new, np.where(rng.random(n) < EASY, -1, 1), labels),
    )
    lines = []
    wrong = fit.predict(*world.pairs) != world.signs
    for name, rule in (("predicted", "drop"), ("prior", "prior")):
        model = replace(fit, cold_start=rule)
        holdout, selective = model.certify(*given, terms, max_error=[request])
        lines.append((f"holdout, {name}", holdout.bound, world.risk(wrong)))
        answered = model.answered(*world.pairs, selective)
        lines.append(
            (f"selective, {name}", request, world.risk(wrong, answered) if answered.any() else 0.0)
        )
    return lines


def later(one, config, n, switch, repeats, terms, seed=0, **more):
    """All lines of ``warm_fit`` or ``cold_fit`` for many worlds."""
    rng = np.random.default_rng(seed)
    lines = []
    for repeat in range(repeats):
        world = World.drawn(rng, switch, popularity=0.3, positive=0.7)
        lines += one(world, rng, n, replace(config, seed=repeat), terms, **more)
    return lines


# ---- certified precision -----------------------------------------------------------------------

# World ─► share of positive cells, how often a label is switched, requested precisions of
# positives, and of negatives
CALLING = {
    "balanced": (0.5, 0.05, (0.9, 0.8), 0.9),
    "8% positive": (0.08, 0.01, (0.6, 0.5), 0.97),
    "2% positive": (0.02, 0.002, (0.5, 0.3), 0.99),
    "label noise": (0.3, 0.2, (0.7, 0.6), 0.75),
}


def calling_fit(world, rng, n, config, delta, positives, negative):
    """Whether some precision, and some recall, is violated, for one request, two, both classes, and
    two groups.

    Each set shares δ. Two are broken on purpose, and take thresholds between the held-out ratings,
    in no fixed order: the lowest whose own binomial test passes ("peeking"), and the lowest with
    the requested precision on these ratings ("observed"). "Clopper–Pearson" is the limit of the
    recall of one request as if its threshold had been fixed. The last number is whether some
    request was met.
    """
    cells, labels = world.ratings(rng, n)
    rows, cols = (index[cells] for index in world.pairs)
    coin = rng.random(world.signs.size) < 0.5
    held = coin[cells]
    if len(np.unique(labels[~held])) < 2:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConverged)
        fit = fit_arrays(rows[~held], cols[~held], labels[~held], config, world.shape, threads=1)
    given = (rows[held], cols[held], labels[held])
    group = world.pairs[1] % 2
    z = fit.confidence(*world.pairs) * np.sign(fit.score(*world.pairs))

    def truth(threshold, name="positive", inside=True):
        """Precision and recall of the calls from this threshold on."""
        value, chance = (z, world.positive) if name == "positive" else (-z, 1 - world.positive)
        law = world.law * coin * inside
        called = law * (value >= threshold)
        return np.dot(called, chance) / max(called.sum(), 1e-300), np.dot(called, chance) / np.dot(
            law, chance
        )

    sets = {"one request": (positives[:1], None), "two requests": (positives, None)}
    sets |= {
        "both classes": ([*positives[:1], f"negative:{negative}"], None),
        "groups": (positives[:1], cols[held] % 2),
    }
    lines = []
    limit = None
    first = None
    for name, (requests, groups) in sets.items():
        found = fit.certify(*given, Terms(delta=delta), min_precision=requests, groups=groups)
        wanted = [
            item
            for item in found
            if item.name == "precision" and bool(item.inputs["group"]) == (name == "groups")
        ]
        met = [item.inputs for item in wanted if item.inputs["threshold"] is not None]
        pairs = []
        for item in met:
            inside = group == int(item["group"]["value"]) if item["group"] else True
            precision, recall = truth(item["threshold"], item["class"], inside)
            pairs.append((precision < item["request"], recall < item["found_limit"]))
            if name == "one request":
                hits = item["n_answered"] - item["errors"]
                limit = betaincinv(hits, item["n_class"] - hits + 1, item["delta_share"] / 2)
                first = recall
        wrong = np.array(pairs).reshape(-1, 2).any(axis=0)
        lines.append((name, *wrong, wrong.any(), bool(met)))
    lines.append(
        ("Clopper–Pearson", False, limit is not None and first < limit, False, limit is not None)
    )
    seen = fit.confidence(*given[:2]) * np.sign(fit.score(*given[:2]))
    order = np.argsort(-seen)
    request = positives[0]
    wrong = np.cumsum(given[2][order] < 0)
    called = np.arange(1, len(order) + 1)
    faults = {
        "peeking": bdtr(wrong, called, 1 - request) <= delta,
        "observed": wrong <= (1 - request) * called,
    }
    for name, passing in faults.items():
        last = np.flatnonzero(passing)[-1:]
        false = any(truth(threshold)[0] < request for threshold in seen[order[last]])
        lines.append((name, false, False, false, len(last) > 0))
    return lines


def calling(world, repeats, delta, n=16000, shape=(80, 60), seed=0):
    """All lines of ``calling_fit`` for short fits of many worlds of a kind."""
    config = FitConfig(rank=2, max_iter=10, tol=0, likelihood_weight=1.0, implicit_features=False)
    positive, switch, positives, negative = CALLING[world]
    rng = np.random.default_rng(seed)
    lines = []
    for repeat in range(repeats):
        drawn = World.drawn(rng, switch, shape, positive, popularity=0.5)
        lines += calling_fit(
            drawn, rng, n, replace(config, seed=repeat), delta, positives, negative
        )
    return lines


def calling_summary(lines):
    """name ─► shares of repeats in which a precision, a recall, and either is violated; in which a
    request is met.
    """
    names = dict.fromkeys(line[0] for line in lines)
    return {
        name: tuple(np.mean([line[1:] for line in lines if line[0] == name], axis=0))
        for name in names
    }


def experiment(config, n, switch, repeats, terms, seed=0, shape=SHAPE):
    """All lines of ``one_fit`` for many worlds."""
    rng = np.random.default_rng(seed)
    lines = []
    for repeat in range(repeats):
        lines += one_fit(
            World.drawn(rng, switch, shape), rng, n, replace(config, seed=repeat), terms
        )
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


if __name__ == "__main__" and sys.argv[1:2] == ["precision"]:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
    from record import save

    asked = [word for word in sys.argv[2:] if word != "--save"]
    names = "violated_precision", "violated_recall", "violated", "met"
    seed, repeats = (
        int(asked[at]) if len(asked) > at else value for at, value in enumerate((0, 1000))
    )
    for world in asked[2:] or CALLING:
        began = time.perf_counter()
        found = calling_summary(calling(world, repeats, 0.2, seed=seed))
        for name, (precision, recall, either, met) in found.items():
            if "--save" in sys.argv:  # into benchmarks/results.json, for docs/certificates.md
                figures = dict(zip(names, map(float, found[name]), strict=True)) | {
                    "seed": seed,
                    "repeats": repeats,
                }
                save("coverage", world, name, figures)
            told = (
                f"violated: precision {precision:.3f}, recall {recall:.3f}, either "
                f"{either:.3f}; met {met:.3f}"
            )
            print(f"{world:12} {name:16} {told}", flush=True)
        print(f"{world:12} {time.perf_counter() - began:.0f} s", flush=True)
elif __name__ == "__main__":
    for loss in ("hinge", "logistic"):
        config = FitConfig(loss=loss, rank=3, max_iter=30, implicit_features=False)
        show(loss, experiment(config, 2000, 0.1, 400, Terms(delta=0.2)))
    show("answers", answering(FitConfig(rank=3, max_iter=30), 4000, 0.05, 400, 0.2, (0.15, 0.1)))
    warm = FitConfig(rank=3, max_iter=12, likelihood_weight=4.0)
    show("warm start", later(warm_fit, warm, 1200, 0.1, 400, Terms(delta=0.2)))
    show(
        "cold start",
        later(
            cold_fit, FitConfig(rank=2, max_iter=8), 800, 0.02, 400, Terms(delta=0.2), request=0.08
        ),
    )
    noisy = FitConfig(rank=10, likelihood_weight=8.0, max_iter=30, implicit_features=False)
    show("noise", experiment(noisy, 2000, 0.5, 400, Terms(delta=0.2)))
    for features in (True, False):
        defaults = FitConfig(implicit_features=features)
        lines = experiment(defaults, 14000, 0.1, 400, Terms(delta=0.2), shape=(100, 80))
        show("defaults" if features else "no features", lines)
