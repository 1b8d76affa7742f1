"""python -m benchmarks NAME [NAME …]: run cases and write benchmarks/results/NAME.json."""

import argparse
from importlib import import_module

from benchmarks.harness import write

CASES = ("streaming", "evidence", "nipv", "kg", "malaria_seeds")


def main() -> None:
    """Run the cases named, in order."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("cases", nargs="+", choices=CASES)
    for case in parser.parse_args().cases:
        path = write(case, import_module(f"benchmarks.{case}").run())
        print(f"{case}: {path}\n{path.read_text()}")


if __name__ == "__main__":
    main()
