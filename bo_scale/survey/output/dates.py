"""Pages of several dates in one, with a slider."""

import html
import os
from collections.abc import Sequence

from bo_scale.survey.whole_files import write_whole

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
html, body {{ margin: 0; height: 100%; font-family: sans-serif; }}
body {{ display: flex; flex-direction: column; }}
header {{ display: flex; gap: 1em; align-items: center; padding: 0.4em 1em; border-bottom: 1px solid #ccc; }}
header input {{ flex: 1; }}
output {{ min-width: 11em; font-weight: bold; }}
iframe {{ flex: 1; border: 0; width: 100%; }}
</style>
</head>
<body>
<header>
<label for="date">Date</label>
<input id="date" type="range" min="0" max="{last}" value="{last}" step="1" aria-valuetext="{shown}">
<output for="date" id="shown">{shown}</output>
</header>
<iframe id="page" title="{title}"></iframe>
{pages}
<script>
const slider = document.getElementById("date"), shown = document.getElementById("shown");
const pages = [...document.querySelectorAll("template[data-date]")];
function show() {{
  const page = pages[Number(slider.value)];
  shown.textContent = page.dataset.date;
  slider.setAttribute("aria-valuetext", page.dataset.date);
  document.getElementById("page").srcdoc = page.dataset.page;
}}
slider.addEventListener("input", show);
show();
</script>
</body>
</html>
"""


def write_dates(title: str, pages: Sequence[tuple[str, str]], path: str | os.PathLike[str]) -> None:
    """Write pages as one, whose slider shows one date after another.

    Args:
        title: Title of the page.
        pages: Dates and their pages, in order; at least one.
        path: The file to make or replace.
    """
    every = "\n".join(
        f'<template data-date="{html.escape(date)}" data-page="{html.escape(page)}"></template>' for date, page in pages
    )
    shown = html.escape(pages[-1][0])
    text = PAGE.format(title=html.escape(title), last=len(pages) - 1, shown=shown, pages=every)
    write_whole(path, [text.encode("utf-8", errors="replace")])
