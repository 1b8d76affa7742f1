"""The log evidence of an exact GP at one hyperparameter after another, in the same memory."""

import math

import numpy as np
import torch

from bo_scale.gp.function_space.exact_evidence import radial_evidence, radial_gradients
from bo_scale.gp.function_space.process import Profile
from bo_scale.gp.linalg import in_place
from bo_scale.gp.linalg.in_place import Array

ENTRIES = 2**15
"""Number of entries of a matrix that are computed at once: they stay in a core's cache."""


class RepeatedEvidence:
    """log N(y; 0, sκ(‖z − z'‖²) + V) with its gradients, of as many rows each time. O(n³ + n²d), in two n × n matrices.

    It says the same as `radial_evidence` and `radial_gradients`. On one thread it takes two thirds of their time with
    1000 rows or more (`benchmarks/exact_evidence.py`), since upper triangles are enough and stay in their memory. On
    more threads it calls them. For a CPU.
    """

    def __init__(self, rows: int) -> None:
        self._matrix, self._slope = (np.empty((rows, rows)) for _ in range(2))  # no memory until it is written

    def __call__(
        self, Z: Array, scale: float, y: Array, variance: Array, profile: Profile
    ) -> tuple[float, tuple[Array, float, Array, Array]]:
        """Return the log evidence, and its gradients in z, s, y and V.

        With u = (I + W)⁻¹b and P = (I + W)⁻¹, for W = V^(−½)KV^(−½) and b = V^(−½)y, the gradient in s is
        ½ (bᵀu − uᵀu − n + tr P)/s, since αᵀKα = uᵀWu and tr A⁻¹K = n − tr P. For the others see `radial_gradients`.

        Args:
            Z: Scaled inputs z, `n × d`, around 0: small distances then keep their digits.
            scale: Variance s of the kernel.
            y: Observations, less the mean, `n`.
            variance: Noise variances, the diagonal of V, `n`.
            profile: κ.

        Raises:
            NotPositiveDefiniteError: for NaN, or if jitter, which is warned of, does not help.
        """
        A, H = self._matrix, 1 / np.sqrt(variance)
        if torch.get_num_threads() > 1:
            return _by_torch(Z, scale, y, variance, profile)
        self._write(Z, scale, H, profile)
        if not in_place.factorise_(A):
            return _by_torch(Z, scale, y, variance, profile)
        b, diagonal = H * y, A.diagonal()
        logdet = 2 * np.log(diagonal).sum() + np.log(2 * math.pi * variance).sum()
        u = in_place.solve(A, b)
        fit = b @ u
        in_place.invert_(A)
        P = diagonal.copy()
        for rows, columns in self._blocks():
            M = A[rows, columns]
            np.subtract(u[rows, None] * u[columns], M, out=M)
            M *= self._slope[rows, columns]
        B = np.concatenate([Z, np.ones((len(Z), 1))], -1) * H[:, None]
        sums = in_place.product(A, B) * (2 * scale * H)[:, None]
        g_scale, g_variance = 0.5 * (fit - u @ u - len(Z) + P.sum()) / scale, 0.5 * H * H * (u * u - P)
        return float(-0.5 * (fit + logdet)), (sums[:, -1:] * Z - sums[:, :-1], float(g_scale), -(H * u), g_variance)

    def _write(self, Z: Array, scale: float, H: Array, profile: Profile) -> None:
        """Write I + W and the kernel's slopes."""
        squares, scaled, doubled = np.einsum("ij,ij->i", Z, Z), scale * H, -2.0 * Z.T
        for rows, columns in self._blocks():
            distances = Z[rows] @ doubled[:, columns]
            distances += squares[columns]
            distances += squares[rows, None]
            np.maximum(distances, 0.0, out=distances)
            np.fill_diagonal(distances, 0.0)
            K, slope = profile(torch.from_numpy(distances), True)
            assert slope is not None, "asked for"
            W = np.multiply(K.numpy(), scaled[columns], out=self._matrix[rows, columns])
            W *= H[rows, None]
            self._slope[rows, columns] = slope.numpy()
        self._matrix.reshape(-1)[:: len(Z) + 1] += 1.0

    def _blocks(self) -> list[tuple[slice, slice]]:
        """Return rows and columns of blocks that cover the upper triangle. They begin at its diagonal."""
        n = len(self._matrix)
        size = max(1, ENTRIES // n)
        return [(slice(i, i + size), slice(i, n)) for i in range(0, n, size)]


def _by_torch(
    Z: Array, scale: float, y: Array, variance: Array, profile: Profile
) -> tuple[float, tuple[Array, float, Array, Array]]:
    """Do the same on any number of threads, with jitter where it is needed."""
    given = (torch.from_numpy(Z), torch.tensor(scale, dtype=torch.float64), torch.from_numpy(y))
    value, saved = radial_evidence(*given, torch.from_numpy(variance), profile)
    g_Z, g_scale, g_y, g_variance = radial_gradients(*saved)
    return value.item(), (g_Z.numpy(), g_scale.item(), g_y.numpy(), g_variance.numpy())
