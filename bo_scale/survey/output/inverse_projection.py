"""Longitude and latitude of metric coordinates, by pyproj or by a polynomial that needs no library."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.polynomial import chebyshev
from pyproj import CRS, Transformer

DEGREES = range(3, 13)
NEAR_ENOUGH = 1e-8
"""Radians: six centimetres on the ground."""


def degrees(xy: Float[np.ndarray, "n 2"], crs: CRS) -> Float[np.ndarray, "n 2"]:
    """Longitude and latitude on WGS 84; infinite where the projection has none."""
    transformer = Transformer.from_crs(crs, "OGC:CRS84", always_xy=True)
    return np.stack(transformer.transform(xy[:, 0], xy[:, 1]), -1)


@dataclass(frozen=True)
class Inverse:
    """Chebyshev polynomials in x and y of the direction (cos φ cos λ, cos φ sin λ, sin φ).

    The direction is smooth at the poles and at the antimeridian, where longitude is not.

    Attributes:
        centre: x and y where the polynomials' arguments are zero.
        half: Metres from there to where they are one.
        coefficients: Coefficients of each component, by degree in x and in y.
        error: The largest found, in radians.
    """

    centre: tuple[float, float]
    half: float
    coefficients: Float[np.ndarray, "3 p p"]
    error: float

    @property
    def decimals(self) -> int:
        """Decimals of degrees that can be shown: five (about a metre) if the polynomials are that good."""
        return int(np.clip(np.floor(-np.log10(np.degrees(self.error) + 1e-12)), 0, 5))


def inverse(bounds: tuple[float, float, float, float], crs: CRS) -> Inverse:
    """Polynomials over the square about some bounds, of the lowest degree that comes near enough.

    Args:
        bounds: Left, bottom, right, top, in metres.
        crs: Metric.
    """
    left, bottom, right, top = bounds
    centre = (left + right) / 2, (bottom + top) / 2
    half = max(right - left, top - bottom, 1.0) / 2
    nodes = np.cos(np.pi * (np.arange(2 * DEGREES.stop) + 0.5) / (2 * DEGREES.stop))
    at, target = _directions(nodes, centre, half, crs)
    check, truth = _directions(np.linspace(-1, 1, 41), centre, half, crs)
    for degree in DEGREES:
        terms = chebyshev.chebvander2d(at[:, 0], at[:, 1], [degree, degree])
        fitted = np.linalg.lstsq(terms, target)[0]
        found = chebyshev.chebvander2d(check[:, 0], check[:, 1], [degree, degree]) @ fitted
        error = float(np.abs(found - truth).max())
        if error < NEAR_ENOUGH:
            break
    return Inverse(centre, half, fitted.T.reshape(3, degree + 1, degree + 1), error)


def _directions(
    nodes: Float[np.ndarray, " k"], centre: tuple[float, float], half: float, crs: CRS
) -> tuple[Float[np.ndarray, "n 2"], Float[np.ndarray, "n 3"]]:
    """Pairs of nodes, and the directions of the places they stand for; without those that are on no map."""
    pairs = np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2)
    longitude, latitude = np.radians(degrees(np.array(centre) + half * pairs, crs)).T
    there = np.isfinite(longitude)
    longitude, latitude = longitude[there], latitude[there]
    flat = np.cos(latitude)
    return pairs[there], np.stack([flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude)], -1)
