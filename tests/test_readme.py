"""The README's example does what it says."""

import json
import re
from pathlib import Path
from typing import Any

README = Path(__file__).parent.parent / "README.md"


def test_the_example_runs_and_finds_the_optimum() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["model"].num_observations == 1015
    assert (names["x"] - 0.3).abs().amax(-1).min() < 0.1


def test_its_numbers_are_those_of_the_results() -> None:
    results = {
        path.stem: json.loads(path.read_text()) for path in (README.parent / "benchmarks/results").glob("*.json")
    }
    streaming, evidence, nipv = results["streaming"], results["evidence"]["seconds"], results["nipv"]
    per_batch, error = nipv["seconds_a_batch"], nipv["gradient_error"]
    rivals = [per_batch["BoTorch with SingleTaskGP n=500 N=10000"], results["kg"]["seconds"]["SingleTaskGP"]]
    expected = [
        f"{1e3 * streaming['WISKI'][-1]['seconds']:.1f} ms, the same as at n = 1,000",
        f"{streaming['SingleTaskGP'][-1]['seconds']:.1f} s",
        f"{1e3 * evidence['WISKI RBF n=1000000']:.1f} ms (RBF), "
        f"{1e3 * evidence['WISKI full rank n=1000000']:.0f} ms (Matérn-1/2)",
        f"{1e3 * evidence['SingleTaskGP n=2000']:.0f} ms",
        f"{1e6 * per_batch['WISKI']['n=500 N=1000000']:.0f} µs a batch, gradient error {error['WISKI']:.0e}",
        f"{rivals[0]:.1f} s, gradient error {error['BoTorch']:.0e}",
        f"{1e3 * results['kg']['seconds']['WISKI']:.1f} ms",
        f"{rivals[1]:.1f} s",
    ]
    assert [text for text in expected if text not in README.read_text()] == []


def test_files_it_names_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text()):
        assert (README.parent / target).exists(), target
