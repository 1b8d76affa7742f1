"""The README's numbers, and those of the pages of measurements, are the measured ones. `test_docs` runs its code."""

import re
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))
from benchmarks import report

README = report.README


def test_tables_are_what_the_report_makes_of_the_results() -> None:
    results = report.load_results()
    remedy = "run python -m benchmarks report"
    assert README.read_text() == report.render_readme(results, README.read_text()), remedy
    pages = report.render_pages(results)
    assert {name: (report.PAGES / name).read_text() for name in pages} == pages, remedy
    assert {page.name for page in report.PAGES.glob("*.md")} == set(pages), "a page of no question"


def test_files_it_names_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text()):
        assert (README.parent / target).exists(), target
