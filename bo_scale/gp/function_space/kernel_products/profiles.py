"""Radial kernels of unit variance as functions κ(r²) of squared distance, with slopes dκ/dr², computed in place."""

import torch
from jaxtyping import Float
from torch import Tensor


def rbf(squares: Float[Tensor, "c n"], slope: bool) -> tuple[Float[Tensor, "c n"], Float[Tensor, "c n"] | None]:
    """κ(r²) = exp(−r²/2), dκ/dr² = −κ/2. The argument is overwritten."""
    K = squares.mul_(-0.5).exp_()
    return K, -0.5 * K if slope else None


def matern12(squares: Float[Tensor, "c n"], slope: bool) -> tuple[Float[Tensor, "c n"], Float[Tensor, "c n"] | None]:
    """κ = exp(−r), dκ/dr² = −κ/(2r), taken as 0 at r = 0, where it is undefined."""
    r = squares.sqrt_()
    K = torch.exp(-r)
    return K, torch.where(r > 0, -0.5 * K / r, 0.0) if slope else None


def matern32(squares: Float[Tensor, "c n"], slope: bool) -> tuple[Float[Tensor, "c n"], Float[Tensor, "c n"] | None]:
    """κ = (1 + a) exp(−a) with a = √3 r, dκ/dr² = −3/2 exp(−a)."""
    a = squares.mul_(3.0).sqrt_()
    E = torch.exp(-a)
    return a.add_(1.0).mul_(E), E.mul_(-1.5) if slope else None


def matern52(squares: Float[Tensor, "c n"], slope: bool) -> tuple[Float[Tensor, "c n"], Float[Tensor, "c n"] | None]:
    """κ = (1 + a + a²/3) exp(−a) with a = √5 r, dκ/dr² = −5/6 (1 + a) exp(−a)."""
    third = squares.mul_(5.0 / 3.0)
    a = (3.0 * third).sqrt_()
    E = torch.exp(-a)
    a = a.add_(1.0)
    K = third.add_(a).mul_(E)
    return K, a.mul_(E).mul_(-5.0 / 6.0) if slope else None
