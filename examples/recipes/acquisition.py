"""An acquisition of one's own: an upper confidence bound that widens with n, for `Optimizer(acquisition="wider_ucb")`.

The bound is mean + √β sd with β = 2 log(n^(d/2 + 2) π²/(3δ)), which grows slowly as observations come in, so that no
region is left for good. A larger δ explores less.

E. Brochu, V. M. Cora, N. de Freitas. A tutorial on Bayesian optimization of expensive cost functions. 2010.
arXiv:1012.2599, section 2.3.2.

    python examples/recipes/acquisition.py
"""

import math

import torch
from botorch.acquisition import AcquisitionFunction, qUpperConfidenceBound
from botorch.sampling import SobolQMCNormalSampler

from bo_scale.loop import AcquisitionKind, Optimizer, Setting, register_acquisition


def width(n: int, d: int, delta: float) -> float:
    """β for n observations of d parameters."""
    return 2 * math.log(n ** (d / 2 + 2) * math.pi**2 / (3 * delta))


def wider_ucb(setting: Setting) -> AcquisitionFunction:
    """Make the acquisition function for one ask: whatever the objective's direction, larger values are better here."""
    beta = width(*setting.observed.shape, delta=setting.options.get("delta", 0.1))
    sampler = SobolQMCNormalSampler(torch.Size([128]), seed=setting.seed)
    return qUpperConfidenceBound(setting.model, beta, sampler, X_pending=setting.pending)


register_acquisition(
    AcquisitionKind(
        "wider_ucb", wider_ucb, "An upper confidence bound that widens with n.", options=frozenset({"delta"})
    )
)


def main(batches: int = 8) -> None:
    """Minimise a function of two valleys with an acquisition of one's own."""
    optimizer = Optimizer(
        {"x": (0.0, 1.0)},
        objective="minimize",
        acquisition="wider_ucb",
        acquisition_options={"delta": 0.5},
        model="wiski",
        model_options={"grid_size": 30},
    )
    best = optimizer.run(
        lambda points: [math.sin(9 * p["x"]) + 0.5 * math.cos(23 * p["x"]) for p in points], batches, 2, progress=False
    )
    n = optimizer.num_observations
    print(f"x = {best.x['x']:.3f} with {best.observed_y:.3f} after {n} observations; β is now {width(n, 1, 0.5):.1f}.")


if __name__ == "__main__":
    main()
