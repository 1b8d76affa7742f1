"""Numbers of options, written as on paper."""

import argparse
import re

COMMA = re.compile(r"[-+]?(0?|[1-9]\d*),\d+")
"""A number with a comma."""
TWO_WAYS = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}")
"""A number whose comma is decimal, or between thousands."""


def number(text: str) -> float:
    """Return the number of an option, with a decimal point or a decimal comma.

    Raises:
        ArgumentTypeError: if it is none, or may be read in two ways.
    """
    text = text.strip()
    if TWO_WAYS.fullmatch(text):
        whole, point = text.replace(",", ""), text.replace(",", ".")
        raise argparse.ArgumentTypeError(f"{text} may be {whole} or {point}; write one of these")
    try:
        return float(text.replace(",", ".") if COMMA.fullmatch(text) else text)
    except ValueError:
        if text.endswith("%"):
            remedy = "a share of 10 % is 0.1, and 10 of a column in per cent is 10"
        else:
            remedy = "write it without units, such as 12.5"
        raise argparse.ArgumentTypeError(f"{text} is no number: {remedy}") from None
