"""Help and refusals do not wait for large packages."""

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "botorch", "gpytorch", "linear_operator", "geopandas", "rasterio", "pyogrio", "pandas", "scipy")
CODE = """
import sys
from bo_scale.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
print("loaded:", *(name for name in {heavy!r} if name in sys.modules), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--help", 0),
        ("survey --help", 0),
        ("survey plan --help", 0),
        ("survey init --help", 0),
        ("loop --help", 0),
        ("loop tell --help", 0),
        ("survey plan s.gpkg --objective best --out n.csv", 2),
        ("survey plan none.gpkg --out n.csv", 1),
        ("survey status none.gpkg", 1),
        ("survey init none.csv --value pb --out s.gpkg", 1),
        ("survey predict s.gpkg --cells 1000000000 --out none/g.tif", 1),
        ("loop observations", 2),
    ],
)
def test_no_large_package_is_imported(words: str, code: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", CODE.format(heavy=HEAVY), *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == code
    assert done.stderr.splitlines()[-1].split() == ["loaded:"]
