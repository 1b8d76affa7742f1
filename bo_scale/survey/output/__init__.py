"""Maps, pages, rasters, tracks."""
