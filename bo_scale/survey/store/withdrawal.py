"""Measurements that are withdrawn: those of a table that should not have been sent, or of a broken instrument."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from bo_scale.errors import SurveyError
from bo_scale.survey.store.arrivals import set_aside
from bo_scale.survey.store.geopackage import State
from bo_scale.survey.store.known import WITHDRAWN, same_rows
from bo_scale.survey.tables.table import Table


@dataclass(frozen=True)
class Withdrawal:
    """The outcome of a withdrawal.

    Attributes:
        state: The survey without the measurements, and without the hyperparameters that were learned with them.
        count: Number of measurements withdrawn.
        missing: Rows of the table that are no measurements of the survey.
        planned: Ids of planned sites that are still to be measured now.
    """

    state: State
    count: int
    missing: list[int]
    planned: list[str]


def withdraw(state: State, table: Table, file: str) -> Withdrawal:
    """Set the measurements of a table aside, as many as it has rows. Planned sites of the last plan wait again.

    Args:
        state: The survey.
        table: The table.
        file: Its name.

    Raises:
        SurveyError: if none of its rows is a measurement of the survey, or all measurements would go.
    """
    found = same_rows(state, table.frame).sites
    gone = np.zeros(len(state.sites), dtype=np.bool_)
    gone[found[found >= 0]] = True
    if not gone.any():
        raise SurveyError(f"{file}: none of its rows is a measurement of the survey, so nothing was withdrawn.")
    if gone.all():
        raise SurveyError(f"{file}: nothing was withdrawn, because no measurement would be left. Begin another survey.")
    ids = set(state.sites.site[gone]) - set(state.sites.site[~gone])
    left, aside = set_aside(state, gone, WITHDRAWN)
    planned = left.planned.copy()
    again = (planned.site.isin(ids) & (planned.status == "measured")).to_numpy()
    last = (planned.batch == planned.batch.max()).to_numpy()
    planned.loc[again & last, "status"] = "planned"
    planned.loc[again & ~last, "status"] = "dropped"
    columns = ["file", "row", "text", "reason", "key", "content"]
    rejected = pd.concat([left.rejected, pd.DataFrame(aside, columns=columns)], ignore_index=True)
    missing = [int(row) for row in table.frame.row[found < 0]]
    return Withdrawal(
        replace(left, planned=planned, rejected=rejected), int(gone.sum()), missing, list(planned.site[again & last])
    )
