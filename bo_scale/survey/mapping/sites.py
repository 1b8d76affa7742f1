"""Measurements on the scale of a model."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from bo_scale.survey.mapping.likelihoods import Likelihood

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sites:
    """Measured values on the model's scale.

    Attributes:
        xy: Places, `n × 2`, metres.
        z: Values, `n`.
        variance: Known variance of every measurement; None if unknown.
        likelihood: What the values and variances stand for: counts, or censored values; None for measurements.
        covariates: Covariates, `n × q`; None without any.
    """

    xy: Array
    z: Array
    variance: Array | None
    likelihood: Likelihood | None = None
    covariates: Array | None = None

    def some(self, rows: Any) -> "Sites":
        """Return some of the sites, as measurements."""
        variance = None if self.variance is None else self.variance[rows]
        covariates = None if self.covariates is None else self.covariates[rows]
        return Sites(self.xy[rows], self.z[rows], variance, covariates=covariates)

    @property
    def units(self) -> tuple[float, float]:
        """The mean of the values and their standard deviation; of counts, whose stand-ins vary by chance, 0 and 1."""
        if self.likelihood is not None:
            return self.likelihood.units
        unit = float(self.z.std()) if len(self.z) > 1 else 0.0
        return float(self.z.mean()), unit if unit > 1e-12 * abs(self.z).max() else 1.0

    @property
    def varies(self) -> bool:
        """Whether measurements differ from the map by more than their known errors."""
        return self.likelihood is None or self.likelihood.varies

    @property
    def counted(self) -> bool:
        """Whether values stand in for counts."""
        return self.likelihood is not None and self.likelihood.counted

    @property
    def digest(self) -> str:
        """A digest of places, likelihood and stand-ins; empty without these."""
        if self.likelihood is None:
            return ""
        arrays = [self.xy, self.z, self.variance, *vars(self.likelihood).values()]
        arrays += [] if self.covariates is None else [self.covariates]
        return sha256(b"".join(np.ascontiguousarray(each).tobytes() for each in arrays)).hexdigest()
