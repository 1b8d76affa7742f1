"""A report as one HTML file that needs nothing else: no network, no script."""

import base64
import hashlib
import html
import re
from collections.abc import Sequence
from importlib.resources import files

from bo_scale.survey.report.sections import Block, Facts, Figure, Grid, Section


def page_of(title: str, sections: Sequence[Section]) -> str:
    """Return the page of sections.

    Args:
        title: Title of the page.
        sections: Its sections.
    """
    template = (files("bo_scale.survey.report") / "page.html").read_text(encoding="utf-8")
    style = re.findall(r"<style>(.*?)</style>", template, re.DOTALL)[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    nothing = "; ".join(f"{what} 'none'" for what in ("default-src", "base-uri", "form-action"))
    filled = {
        "policy": f"{nothing}; img-src data:; style-src 'sha256-{digest}'",
        "title": html.escape(title),
        "contents": "".join(f'<li><a href="#{each.name}">{html.escape(each.title)}</a></li>' for each in sections[1:]),
        "sections": "".join(map(_section, sections)),
    }
    return re.sub(r"\{\{(policy|title|contents|sections)\}\}", lambda found: filled[found[1]], template)


def _section(section: Section) -> str:
    heading = f"<h2>{html.escape(section.title)}</h2>"
    inside = "".join(map(_block, section.blocks))
    if section.name == "notes":
        inside = "<ul>" + "".join(f"<li>{html.escape(str(each))}</li>" for each in section.blocks) + "</ul>"
    return f'<section id="{html.escape(section.name, quote=True)}">{heading}{inside}</section>'


def _block(block: Block) -> str:
    if isinstance(block, str):
        return f"<p>{html.escape(block)}</p>"
    if isinstance(block, Facts):
        pairs = (f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>" for name, value in block.pairs)
        return f"<dl>{''.join(pairs)}</dl>"
    if isinstance(block, Figure):
        return f"<figure>{block.svg}<figcaption>{html.escape(block.caption)}</figcaption></figure>"
    return _table(block)


def _table(grid: Grid) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=word' if k < grid.words else ''}>{html.escape(cell)}</{tag}>" for k, cell in enumerate(row)
        )

    head = f"<thead><tr>{cells('th', grid.header)}</tr></thead>"
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in grid.rows)
    return f'<div class="scroll"><table>{head}<tbody>{body}</tbody></table></div>'
