"""KL(ρ‖π) to a prior of normals, one a row: against the textbook formula."""

import numpy as np
import pytest

from onebit_spark import FitConfig
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.hyper_posterior import FixedPrior
from onebit_spark.core.losses import SIDES, PriorLines, RowPrior
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.solver import descend
from onebit_spark.engines.threads import local_engine
from onebit_spark.simulate import simulate


def kl_of_normals(mean, covariance, prior_mean, precision):
    """½ [tr(GV) + (x−p)ᵀG(x−p) − D + log det G⁻¹ − log det V], G = diag g."""
    shift = mean - prior_mean
    log_dets = -np.sum(np.log(precision)) - np.linalg.slogdet(covariance)[1]
    return 0.5 * (precision @ np.diag(covariance) + precision @ shift**2 - len(mean) + log_dets)


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
@pytest.mark.parametrize("intercepts", [False, True])
def test_the_divergence_from_a_fixed_prior(loss, intercepts):
    data = simulate("B2", rank=2, shape=(20, 15), fraction=0.6)
    rng = np.random.default_rng(0)
    config = FitConfig(
        loss=loss, rank=2, intercepts=intercepts, precision="float64", max_iter=7, tol=0, implicit_features=False
    )
    lines = [
        RowPosterior(rng.normal(size=shape), rng.uniform(0.3, 1.4, shape), "spread", intercepts)
        for shape in [(m, config.dimension) for m in (20, 15)]
    ]
    priors = [RowPrior.at(line) for line in lines]
    with local_engine(
        RatingBlock.from_coordinates(data.rows, data.cols, data.labels > 0, (20, 15))
    ).running() as engine:
        engine.start(config, config.make_loss())
        outcome = descend(engine, config, FixedPrior(*map(PriorLines, lines)))
        expected = sum(
            kl_of_normals(posterior.location[i], posterior.covariance[i], prior.mean[i], prior.precision[i])
            for posterior, prior in zip((engine.posterior(side) for side in SIDES), priors, strict=True)
            for i in range(posterior.n_rows)
        )
    assert outcome.history[-1].divergence == pytest.approx(expected, rel=1e-9)
    objectives = [step.objective for step in outcome.history]
    assert np.all(np.diff(objectives) <= 1e-9 * np.abs(objectives[:-1]))
