"""Noise variances that predictions add, and the batch shape of predictions."""

from typing import Any

import numpy as np
import torch
from botorch.models.utils.assorted import fantasize as fantasize_flag
from torch import Tensor

from bo_scale.errors import InvalidDataError, WrongTypeError
from bo_scale.gp.inference import Inference
from bo_scale.models.shell.door import broadcasts, require_device, require_noise, require_tensors
from bo_scale.models.shell.student_t import StudentTNoise


def batch_of(model: Any, inference: Inference, X: Tensor) -> torch.Size:
    """Return the batch shape of predictions at inputs, with the model's fantasies and its samples."""
    here = torch.Size([*X.shape[:-2], *inference.samples_shape])
    if not model._batch_shape or here == model._batch_shape:
        return here
    try:
        return torch.broadcast_shapes(here, model._batch_shape)
    except RuntimeError:
        raise InvalidDataError(
            f"X: batch shape {tuple(X.shape[:-2])} does not fit the model's fantasies of batch shape "
            f"{tuple(model._batch_shape)}. Give X without batch dimensions, or with these."
        ) from None


def added_noise(
    model: Any,
    inference: Inference,
    outputs: list[int],
    given: bool | Tensor | None,
    X: Tensor,
    batch: torch.Size,
) -> Tensor | None:
    """Return noise variances … q k that predictions at X add, in transformed units; None for none."""
    sampled = inference.sampled_noise
    if isinstance(given, Tensor):
        require_tensors(observation_noise=given)
        require_device(X.device, observation_noise=given)
        shape = [*batch, X.shape[-2], model.num_outputs]
        if sampled is not None and given.ndim > 2 and not broadcasts(given.shape, shape):  # shared by the samples
            require_noise(given, [*batch[:-1], *shape[-2:]], "observation_noise")
            return given[..., outputs].unsqueeze(-3)
        require_noise(given, shape, "observation_noise")
        return given[..., outputs]
    if given is None:
        return None
    if not isinstance(given, bool | np.bool_):
        raise WrongTypeError(f"observation_noise: expected True, False or a tensor of variances, got {given!r}.")
    if not given:
        return None
    if sampled is not None:
        return sampled.reshape(-1, 1, 1)
    noise = model.mean_noise
    if isinstance(model.likelihood, StudentTNoise) and model.rows is not None and not fantasize_flag.on():
        squares = model.likelihood.mean_squares(model.rows)  # fantasies are conditioned as regular values
        noise = noise * squares.to(noise)
    added = (noise if outputs == list(range(model.num_outputs)) else noise[outputs]).unsqueeze(0)
    return added * _local_scales(inference, X, outputs) if inference.scales_locally else added


def _local_scales(inference: Inference, X: Tensor, outputs: list[int]) -> Tensor:
    """Return the factors of the noise variances of outputs at X: `… q k`."""
    scales = [inference.local_scale(X.to(torch.float64), j) for j in outputs]
    ones = torch.ones_like(X[..., 0])
    return torch.stack([ones if scale is None else scale.to(ones) for scale in scales], -1)
