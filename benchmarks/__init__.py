"""Claims of speed and quality, each measured with its rival in the same run.

`python -m benchmarks NAME …` measures cases, `python -m benchmarks report` makes every table and plot from the results.

To add a case, write `benchmarks/NAME.py` and put NAME into the cases of a question in
`benchmarks/questions.py`. The module has

- `units(data: Path | None) -> dict[str, Callable[[], dict[str, Any]]]`: for the name of every unit ("levy wiski seed
  3") the function that measures it and returns a dict for JSON, with its seed where it has one. Building all of it must
  be cheap: every process does. Bind loop variables: `functools.partial(measure, "levy", seed=3)`. Things timed against
  each other belong into one unit. Where a data set is needed, the unit's function (not `units`) calls
  `harness.require_data(data, "name.npz")`.
- `TITLE: str`, a heading of its page in docs/measured.
- `table(result: Result) -> str`: Markdown without the heading, from the JSON alone: `result["units"][name]`. A case may
  be half done: show what is there.
- optional `headline(result: Result) -> list[Row]`: rows (what, bo_scale, rival) for docs/measured/index.md; the first
  is in README.md if `questions.ON_README` has the case.
- optional `PLOTS: dict[str, str]`, file name in docs/measured to caption, and `plot(result: Result, folder: Path) ->
  None`, which writes exactly those files. `benchmarks.plots` (matplotlib) is imported inside `plot` only.

`benchmarks.text` formats seconds, ratios and Markdown tables, `benchmarks.plots` draws lines with quartile bands.

A unit runs after `torch.manual_seed(0)` with warnings off. Its result is in benchmarks/results/NAME.json as soon as it
is measured, with floats at 6 significant digits, so that a run may be killed and resumed; two processes may share a
case. "threads" and "wall_seconds" are added to every unit.
"""

from benchmarks.questions import QUESTIONS

CASES = tuple(case for question in QUESTIONS for case in question.cases)
