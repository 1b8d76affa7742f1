"""Arguments for reading a table of measurements."""

import argparse


def add_reading_arguments(command: argparse._ActionsContainer) -> None:
    """Add the arguments that say how a table is read.

    Args:
        command: The parser of the command, or a group of its arguments.
    """
    command.add_argument("--sheet", metavar="NAME", help="sheet of a workbook (default: the first)")
    decimal = "decimal mark, if numbers such as 1,234 may be read in two ways (default: what each column shows)"
    command.add_argument("--decimal", choices=("comma", "point"), help=decimal)
