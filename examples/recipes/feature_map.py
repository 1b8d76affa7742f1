"""A model of one's own: random Fourier features of an RBF kernel, for `Optimizer(model="fourier")`.

The kernel exp(−|x − x'|²/2) is the expectation of cos ωᵀ(x − x') over ω ~ N(0, I). With k draws of ω the 2k features
[cos ωᵀx, sin ωᵀx]/√k therefore have about this kernel as their product. A Bayesian linear model of them is about a GP
with this kernel, and one more observation costs O(k²), whatever n is.

A. Rahimi, B. Recht. Random features for large-scale kernel machines. NIPS 2007.

    python examples/recipes/feature_map.py
"""

import math
from dataclasses import dataclass

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from jaxtyping import Float
from linear_operator.operators import ConstantDiagLinearOperator
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.loop import ModelKind, Optimizer, register_model
from bo_scale.models.shell.kernels import default_scaled_kernel
from bo_scale.models.shell.weight_space import WeightSpaceModel


@dataclass(frozen=True)
class FourierFeatures(FeatureMap):
    """φ(x) = [cos Ω(x/ℓ), sin Ω(x/ℓ)]/√k with weights N(0, s I), so that φ(x)ᵀSφ(x) = s everywhere.

    Attributes:
        frequencies: Ω, a draw of N(0, I) in each row.
        lengthscale: ℓ.
        outputscale: s.
    """

    frequencies: Float[Tensor, "k d"]
    lengthscale: Float[Tensor, "1 d"]
    outputscale: Float[Tensor, ""]

    @property
    @override
    def num_features(self) -> int:
        return 2 * len(self.frequencies)

    @override
    def __call__(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n p"]:
        angles = (X.double() / self.lengthscale) @ self.frequencies.T
        return torch.cat([angles.cos(), angles.sin()], -1) / math.sqrt(len(self.frequencies))

    @override
    def prior_root(self) -> ConstantDiagLinearOperator:
        return ConstantDiagLinearOperator(self.outputscale.sqrt().reshape(1), self.num_features)

    @override
    def kernel_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        return self.outputscale.expand(X.shape[:-1])


class FourierGP(WeightSpaceModel):
    """A GP with an RBF kernel, approximated by random Fourier features. Outputs share the kernel.

    The lengthscales are parameters of φ: the package passes over the data once more when they change. The outputscale,
    the mean and the noise are not.

    Args:
        train_X: Inputs `n × d`.
        train_Y: Observations `n × m`.
        train_Yvar: Known noise variances `n × m`; None to learn the noise.
        num_frequencies: Half the number of features, k.
        seed: Seed of the frequencies.
        mean_module: As for SingleTaskGP.
        likelihood: As for SingleTaskGP. A search passes one for noise of any size.
        input_transform: As for SingleTaskGP.
        outcome_transform: As for SingleTaskGP: Standardize by default.
    """

    shares_features = True

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        num_frequencies: int = 100,
        seed: int = 0,
        mean_module: Mean | None = None,
        likelihood: Likelihood | None = None,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
    ) -> None:
        given = mean_module, likelihood, input_transform, outcome_transform
        super().__init__(train_X, train_Y, train_Yvar, *given, check_scaling=True)
        d, generator = train_X.shape[-1], torch.Generator().manual_seed(seed)
        self.register_buffer("frequencies", torch.randn(num_frequencies, d, generator=generator, dtype=torch.float64))
        self.covar_module = default_scaled_kernel(d, torch.Size(), self._transformed_rows()[0])
        self.to(train_X)  # dtype and device of the data

    @override
    def _feature_parameters(self) -> list[torch.nn.Parameter]:
        return [self.covar_module.base_kernel.raw_lengthscale]

    @override
    def _feature_map(self, output: int, frozen: bool = False) -> FourierFeatures:
        lengthscale = self.covar_module.base_kernel.lengthscale.double()
        outputscale = self.covar_module.outputscale.double()
        if frozen:  # a copy: the next step of a fit changes parameters in place
            lengthscale, outputscale = lengthscale.detach().clone(), outputscale.detach().clone()
        return FourierFeatures(self.frequencies.double(), lengthscale, outputscale)


register_model(ModelKind("fourier", FourierGP, "Random Fourier features of an RBF kernel.", streams=True))


def main(batches: int = 6) -> None:
    """Minimise a function with a model of one's own."""
    space = {"x": (-2.0, 2.0), "y": (-1.0, 3.0)}
    options = {"num_frequencies": 50}
    optimizer = Optimizer(space, objective="minimize", model="fourier", model_options=options, refit_growth=1.5)
    best = optimizer.run(lambda points: [valley(**point) for point in points], batches, 4, progress=False)
    found = ", ".join(f"{name} = {value:.2f}" for name, value in best.x.items())
    print(f"{type(optimizer.model).__name__}: {found}, where {best.observed_y:.4f} was seen; the least is 0 at (1, 1).")


def valley(x: float, y: float) -> float:
    """Least on a bend."""
    return (1 - x) ** 2 + (y - x**2) ** 2


if __name__ == "__main__":
    main()
