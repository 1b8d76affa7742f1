"""Predictions of more cells than fit into memory: by tiles, into one cloud-optimised GeoTIFF."""
