"""The rival: an exact GP whose design is computed densely, by rank-one steps between refits."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from benchmarks.designs import GROWTH, Design
from bo_scale.models.shell.kernels import ProductMaternKernel

_ROWS, _SPARE = 1000, 50


class ExactDesign(Design):
    """Integrated variance of a SingleTaskGP over a pool, exactly, as fast as a dense computation allows.

    With L Lᵀ = k(X, X) + σ²I and V = L⁻¹k(X, ·), the posterior covariance is k(c, z) − V_cᵀV_z, and measuring at c
    lowers the integrated variance by S_c / (v_c + σ²) with S_c = Σ_z k_post(c, z)². One more site adds a row to V and
    changes S and v by a rank-one step: O(N M + n N) for N candidates and M integration points, where BoTorch's
    acquisition function conditions the model anew for every candidate. k(c, z) is kept in float32, all else in float64.
    """

    @torch.no_grad()
    def predict(self) -> tuple[Tensor, Tensor]:
        """See Design."""
        transform = self.model.outcome_transform
        mean, scale = transform.means.reshape(()), transform.stdvs.reshape(())
        V = self._V[1]
        predicted = self._constant + V.mT @ self._residual
        variance = self._prior - V.square().sum(0) + self._noise
        return mean + scale * predicted, scale.square() * variance

    def _prepare(self) -> None:
        model, n = self.model, len(self.X)
        X, *self._places = (model.transform_inputs(points) for points in (self.X, self.pool, self.test))
        self._noise = model.likelihood.noise.squeeze()
        self._constant = model.mean_module.constant.squeeze()
        self._prior = self._covariance(X[:1], X[:1]).squeeze()
        L = torch.linalg.cholesky(self._covariance(X, X) + self._noise * torch.eye(n, dtype=X.dtype))
        targets = model.outcome_transform(self.Y)[0] - self._constant
        covariances = (targets, *(self._covariance(X, places) for places in self._places))
        spare = int((GROWTH - 1) * n) + _SPARE
        residual, *V = (pad(torch.linalg.solve_triangular(L, K, upper=False), (0, 0, 0, spare)) for K in covariances)
        self._count, self._residual, self._V = n, residual.squeeze(-1), V
        self._variance = self._prior - V[0].square().sum(0)
        self._set_squares()

    def _set_squares(self) -> None:
        """k(c, z) and S, some rows at a time: O(n N M)."""
        pool, test = (places.float() for places in self._places)
        V_pool, V_test = (V[: self._count].float() for V in self._V)
        self._K = torch.empty(len(pool), len(test), dtype=torch.float32)
        self._square = torch.empty_like(self._variance)
        for rows in torch.arange(len(pool)).split(_ROWS):
            self._K[rows] = self._covariance(pool[rows], test)
            posterior = torch.addmm(self._K[rows], V_pool[:, rows].mT, V_test, alpha=-1.0)
            self._square[rows] = posterior.square().sum(-1, dtype=torch.float64)

    def _covariance(self, x: Tensor, z: Tensor) -> Tensor:
        """The Matérn-3/2 kernel `n × m` at inputs `n × d` and `m × d`: ten times faster than GPyTorch's own."""
        kernel = self.model.covar_module
        matern = kernel.base_kernel
        a, b = (math.sqrt(3) * (places / matern.lengthscale.to(places)) for places in (x, z))
        product = isinstance(matern, ProductMaternKernel)
        covariance = kernel.outputscale.to(x)
        for one, other in zip(a.split(1, -1), b.split(1, -1), strict=True) if product else [(a, b)]:
            r = torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist")
            covariance = covariance * (1 + r).mul_(r.neg_().exp_())
        return covariance

    def _begin_batch(self) -> None:
        self._scales: list[Tensor] = []

    def _choose_one(self, pending: list[int]) -> int:
        noisy = self._variance + self._noise
        site = int(torch.where(self.open, self._square / noisy, -torch.inf).argmax())
        n, scale, before = self._count, noisy[site].sqrt(), self._V[0][: self._count, site].clone()
        x = self._places[0][site : site + 1]
        v_pool, v_test = (
            (self._covariance(x, places).squeeze(0) - V[:n].mT @ before) / scale
            for places, V in zip(self._places, self._V, strict=True)
        )
        through = (self._K @ v_test.float()).double() - self._V[0][:n].mT @ (self._V[1][:n] @ v_test)
        self._square += v_pool * (v_pool * v_test.square().sum() - 2 * through)
        self._variance -= v_pool.square()
        self._V[0][n], self._V[1][n] = v_pool, v_test
        self._count += 1
        self._scales.append(scale)
        return site

    def _condition(self, sites: list[int], Y: Tensor) -> None:
        """Extend L⁻¹(y − μ); choosing has extended V already."""
        targets = self.model.outcome_transform(Y)[0].squeeze(-1) - self._constant
        first = self._count - len(sites)
        for row, (site, y, scale) in enumerate(zip(sites, targets, self._scales, strict=True), first):
            self._residual[row] = (y - self._V[0][:row, site] @ self._residual[:row]) / scale
