"""Posterior function samples: exact, and as cheap to evaluate as a mean.

A draw of the weights is a whole function f(x) = μ + φ(x)ᵀw. Registered with BoTorch's `draw_matheron_paths`, so that
PathwiseThompsonSampling, JES and MES use these draws.
"""

from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.sampling.pathwise import draw_kernel_feature_paths, gaussian_update
from botorch.sampling.pathwise.paths import SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.sampling.pathwise.utils import get_input_transform, get_output_transform
from jaxtyping import Float
from torch import Size, Tensor
from typing_extensions import override

from bo_scale.conditioned import Conditioned
from bo_scale.features.base import FeatureMap
from bo_scale.features.sparse import dot
from bo_scale.models.base import ScalableModel
from bo_scale.models.weight_space import WeightSpaceModel
from bo_scale.posterior import WeightSpacePosterior


class WeightSpacePath(SamplePath):
    """Functions f(x) = μ + φ(x)ᵀw, one for each row of w.

    At inputs `b × n × d` the values are `s × n` with b broadcast against s, the batch shape of w.

    Args:
        features: φ.
        weights: w, in units of the transformed targets.
        constants: μ.
        input_transform: From raw inputs to those of φ.
        output_transform: From transformed targets to raw ones.
    """

    weight: Tensor
    constant: Tensor

    def __init__(
        self,
        features: FeatureMap,
        weights: Float[Tensor, "*s p"],
        constants: Float[Tensor, "*c"],
        input_transform: Any = None,
        output_transform: Any = None,
    ) -> None:
        super().__init__()
        self._map = features
        self.register_buffer("weight", weights)
        self.register_buffer("constant", constants)
        self.input_transform = input_transform
        self.output_transform = output_transform

    @override
    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Values at transformed inputs. O(4^d) a value for a grid's features."""
        values = dot(self._map(x), self.weight.to(torch.float64)) + self.constant.unsqueeze(-1)
        return values.to(x.dtype)

    @override
    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Nothing to do: these models are no ensembles."""


class OutputPaths(SamplePath):
    """Functions of several outputs that share no features: values `s × m × n`.

    Args:
        paths: One for each output, without transforms.
        input_transform: From raw inputs to those of φ.
        output_transform: From transformed targets to raw ones.
    """

    def __init__(self, paths: list[WeightSpacePath], input_transform: Any = None, output_transform: Any = None) -> None:
        super().__init__()
        self.paths = torch.nn.ModuleList(paths)
        self.input_transform = input_transform
        self.output_transform = output_transform

    @override
    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Values at transformed inputs, which broadcast against the batch shape of each output's draws and m."""
        if x.ndim > 2 and x.shape[-3] == len(self.paths):
            return torch.stack([path(part) for path, part in zip(self.paths, x.unbind(-3), strict=True)], -2)
        return torch.stack([path(x.squeeze(-3) if x.ndim > 2 else x) for path in self.paths], -2)

    @override
    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Nothing to do: these models are no ensembles."""


def draw_posterior_functions(
    model: ScalableModel, sample_shape: Size, generator: torch.Generator | None = None
) -> WeightSpacePath | OutputPaths:
    """Exact draws of functions from the posterior of a weight-space model.

    Several outputs become the last batch dimension of the values: `sample_shape × m × n`. O(p s) a draw. The variance
    that `missing_variance` and a conservative WISKI add to predictions is that of no features, and is not in the draws.

    Args:
        model: A fitted model.
        sample_shape: How many draws.
        generator: Source of randomness; None for torch's global one.

    Raises:
        UnsupportedError: if the model's posterior has no weights.
    """
    model.eval()
    weights, constants, features = [], [], []
    for process in model._current_processes():
        base = process.base if isinstance(process, Conditioned) else process
        if not isinstance(process, WeightSpacePosterior | Conditioned) or not isinstance(base, WeightSpacePosterior):
            raise UnsupportedError(f"{type(model).__name__} has no weight-space posterior to draw functions from.")
        weights.append(process.sample_weights(sample_shape, generator))
        constants.append(base.constant)
        features.append(base.features)
    transforms = {"input_transform": get_input_transform(model), "output_transform": get_output_transform(model)}
    if model.num_outputs == 1:
        return WeightSpacePath(features[0], weights[0], constants[0], **transforms)
    if isinstance(model, WeightSpaceModel) and model._shared_features:
        return WeightSpacePath(features[0], torch.stack(weights, -2), torch.stack(constants), **transforms)
    return OutputPaths(
        [WeightSpacePath(*parts) for parts in zip(features, weights, constants, strict=True)], **transforms
    )


@DrawMatheronPaths.register(ScalableModel)  # type: ignore[untyped-decorator]
def _draw_matheron_paths(
    model: ScalableModel,
    *,
    sample_shape: Size,
    prior_sampler: Any = draw_kernel_feature_paths,
    update_strategy: Any = gaussian_update,
) -> WeightSpacePath | OutputPaths:
    """What BoTorch calls. The samplers it passes approximate what is exact here, and are not used."""
    return draw_posterior_functions(model, sample_shape)
