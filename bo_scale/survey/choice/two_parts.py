"""A design state of presence and amount, and how a measurement changes both."""

from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.survey.choice.design_state import ClosedDesignState, DesignState, JointDesignState

Cells = tuple[Float[Tensor, " N"], Float[Tensor, " N"], Float[Tensor, " N"], Float[Tensor, "M N"]]


@dataclass(frozen=True)
class TwoPartDesignState(DesignState):
    """The knowledge of θ = p a, linear in the logit of presence p and in the logarithm of the amount a.

    A measurement tells of presence, and with probability p of the amount. Weights of the parts contain the squared
    slopes of θ at the cells.

    Attributes:
        points: Candidates.
        noise: Variance of a measurement of log a.
        amount: Knowledge of log a.
        presence: Knowledge of logit p.
        share: p at the points.
        slopes: ∂θ/∂log a and ∂θ/∂logit p at the points, in units of the parts.
        factors: Means of the squared slopes over the area, with which totals of the parts add up to that of θ.
    """

    points: Float[Tensor, "M d"]
    noise: Float[Tensor, ""]
    amount: ClosedDesignState | JointDesignState
    presence: ClosedDesignState | JointDesignState
    share: Float[Tensor, " M"]
    slopes: tuple[Float[Tensor, " M"], ...]
    factors: tuple[float, ...]

    @override
    def means(self) -> Float[Tensor, " M"]:
        return self.slopes[0]  # ∂θ/∂log a = θ

    @override
    def variances(self) -> Float[Tensor, " M"]:
        by_amount, by_presence = self.slopes
        return by_amount.square() * self.amount.variances() + by_presence.square() * self.presence.variances()

    @override
    def total(self) -> float:
        by_amount, by_presence = self.factors
        return by_amount * self.amount.total() + by_presence * self.presence.total()

    @override
    def reduction(self) -> Float[Tensor, " M"]:
        by_amount, by_presence = self.factors
        return self.share * by_amount * self.amount.reduction() + by_presence * self.presence.reduction()

    @override
    def cells(self) -> Cells:
        raise NotImplementedError("of two parts no objective that needs cells is offered")

    @override
    def joint(self) -> Float[Tensor, "M M"]:
        (a, b), amount, presence = self.slopes, self.amount.joint(), self.presence.joint()
        return a.unsqueeze(-1) * amount * a + b.unsqueeze(-1) * presence * b

    @override
    def after(self, index: int) -> "TwoPartDesignState":
        """Return the state once the point is measured: of the amount with noise σ²/p, which is told only if present."""
        told = replace(self.amount, noise=self.noise / self.share[index].clamp_min(1e-6)).after(index)
        return replace(self, amount=replace(told, noise=self.noise), presence=self.presence.after(index))
