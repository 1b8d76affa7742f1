"""The help of options that name covariates."""

COVARIATE = (
    "GeoTIFF or column that the quantity depends on; NAME:categorical for classes, NAME:kernel for a smooth effect"
)
