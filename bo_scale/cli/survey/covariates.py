"""The help of options that name covariates."""

COVARIATE = (
    "GeoTIFF or column that the quantity depends on; NAME:categorical for classes, NAME:kernel for a smooth effect"
)
TIME = "column of dates (2024-06-01), or of numbers, of a quantity that changes"
DECAY = "days, or units of the column, in which what was measured loses its hold (default: learned)"
