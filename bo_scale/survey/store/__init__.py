"""The state of a survey in a GeoPackage."""
