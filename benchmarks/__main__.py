"""python -m benchmarks NAME [NAME …]: measure cases into benchmarks/results; `report` makes tables and plots."""

import argparse
import os
import sys
from pathlib import Path

from benchmarks import CASES
from benchmarks.harness import MissingDataError, run_case
from benchmarks.report import write_report
from benchmarks.store import StoreError


def main() -> None:
    """Run the cases named, in order."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "cases", nargs="+", choices=[*CASES, "report"], metavar="NAME", help=f"{', '.join(CASES)}, report"
    )
    parser.add_argument("--data", type=Path, help="folder of data sets (npz); also BO_SCALE_DATA")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results of these cases")
    parser.add_argument("--units", default="*", metavar="PATTERN", help="only units that match, as in '*seed 3'")
    arguments = parser.parse_args()
    folder = os.environ.get("BO_SCALE_DATA")
    data = arguments.data or (Path(folder) if folder else None)
    try:
        for case in arguments.cases:
            if case == "report":
                write_report()
            else:
                run_case(case, data, arguments.fresh, arguments.units)
    except (MissingDataError, StoreError) as error:
        sys.exit(f"{case}: {error}")


if __name__ == "__main__":
    main()
