"""One cloud-optimised GeoTIFF of tiles: GDAL's driver makes it, and all of it is read back."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

import numpy as np
import rasterio
from rasterio._err import CPLE_BaseError
from rasterio.errors import RasterioError
from rasterio.shutil import copy
from rasterio.windows import Window

from bo_scale.survey.geography.grid import Grid
from bo_scale.survey.tiles.tile import BLOCK, Part

CACHE = 256
"""Megabytes of blocks that GDAL keeps in memory."""
OPTIONS = {
    "driver": "COG",
    "compress": "DEFLATE",
    "predictor": "YES",
    "blocksize": BLOCK,
    "overview_resampling": "AVERAGE",
    "bigtiff": "IF_SAFER",
    "sparse_ok": "YES",
}


@dataclass(frozen=True)
class Mosaic:
    """Tiles of one raster.

    Attributes:
        folder: Folder of the tiles' files.
        grid: All cells.
        tiles: Names of files, and the rows and columns that they hold.
        bands: Names of the bands and what their numbers are of.
        tags: Tags of the whole file.
    """

    folder: Path
    grid: Grid
    tiles: Sequence[tuple[str, Part]]
    bands: Sequence[tuple[str, str]]
    tags: Mapping[str, str]

    def write(self, path: Path, threads: int) -> None:
        """Make the file, with overviews, and read all of it back.

        Args:
            path: The file to make.
            threads: Threads that compress.

        Raises:
            OSError: if it cannot be written whole.
        """
        source = self.folder / "mosaic.vrt"
        source.write_text(self.virtual, encoding="utf-8")
        try:
            with rasterio.Env(GDAL_CACHEMAX=CACHE):
                copy(source, path, num_threads=threads, **OPTIONS)
                for _ in self.read_back(path):
                    pass
        except (RasterioError, CPLE_BaseError, ValueError) as error:
            raise OSError(f"GDAL says {error}; is the disk full?") from error

    def read_back(self, path: Path) -> Iterator[None]:
        """Compare every tile with the file, bit by bit, and read all overviews.

        Raises:
            OSError: if a tile differs.
        """
        with rasterio.open(path) as made:
            for name, (rows, columns) in self.tiles:
                with rasterio.open(self.folder / name) as tile:
                    expected = tile.read()
                window = Window.from_slices(rows, columns)
                if not np.array_equal(made.read(window=window).view(np.uint32), expected.view(np.uint32)):
                    raise OSError("what was written is not what was predicted; is the disk full?")
                yield
            levels = len(made.overviews(1))
        for level in range(levels):
            with rasterio.open(path, overview_level=level) as made:
                for _, window in made.block_windows(1):
                    made.read(window=window)

    @property
    def virtual(self) -> str:
        """The raster as GDAL's virtual format describes it, whose tiles lie beside it."""
        grid = self.grid
        tags = "".join(f"<MDI key={quoteattr(key)}>{escape(text)}</MDI>" for key, text in self.tags.items())
        bands = "".join(self._band(number, *band) for number, band in enumerate(self.bands, start=1))
        return (
            f'<VRTDataset rasterXSize="{grid.columns}" rasterYSize="{grid.rows}">'
            f"<SRS>{escape(grid.crs.to_wkt())}</SRS>"
            f"<GeoTransform>{grid.left!r}, {grid.size!r}, 0.0, {grid.top!r}, 0.0, {-grid.size!r}</GeoTransform>"
            f"<Metadata>{tags}</Metadata>{bands}</VRTDataset>"
        )

    def _band(self, number: int, name: str, of: str) -> str:
        sources = "".join(self._source(number, *tile) for tile in self.tiles)
        return (
            f'<VRTRasterBand dataType="Float32" band="{number}" blockXSize="{BLOCK}" blockYSize="{BLOCK}">'
            f'<Metadata><MDI key="of">{escape(of)}</MDI></Metadata><Description>{escape(name)}</Description>'
            f"<NoDataValue>nan</NoDataValue>{sources}</VRTRasterBand>"
        )

    @staticmethod
    def _source(number: int, name: str, part: Part) -> str:
        (rows, columns), kind = part, f'DataType="Float32" BlockXSize="{BLOCK}" BlockYSize="{BLOCK}"'
        height, width = rows.stop - rows.start, columns.stop - columns.start
        return (
            f'<SimpleSource><SourceFilename relativeToVRT="1">{name}</SourceFilename><SourceBand>{number}</SourceBand>'
            f'<SourceProperties RasterXSize="{width}" RasterYSize="{height}" {kind}/>'
            f'<SrcRect xOff="0" yOff="0" xSize="{width}" ySize="{height}"/>'
            f'<DstRect xOff="{columns.start}" yOff="{rows.start}" xSize="{width}" ySize="{height}"/></SimpleSource>'
        )
