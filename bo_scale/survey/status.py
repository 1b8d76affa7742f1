"""A survey in sentences."""

import os

import numpy as np

from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.model import REFIT
from bo_scale.survey.mapping.structure import Structure, measured_on
from bo_scale.survey.workspace import Workspace

LISTED = 20
"""Rejected rows that are named."""


def status_of(path: str | os.PathLike[str], workspace: Workspace) -> str:
    """Describe a survey: its measurements, rejected rows, plans, model and area, a line each."""
    state, planned = workspace.state, workspace.state.planned
    lines = [f"{path}: {workspace.quantity}", *workspace.notes]
    lines.append(f"Measurements: {len(state.sites):,}. Rows set aside: {len(state.rejected):,}.")
    lines += [f"  {one.file}, row {one.row}: {one.reason}" for one in state.rejected.head(LISTED).itertuples()]
    counts = {name: int((planned.status == name).sum()) for name in ("planned", "measured", "dropped")}
    lines.append(
        f"Plans: {len(state.settings['plans'])}. Sites planned: {counts['planned']} to be measured, "
        f"{counts['measured']} measured, {counts['dropped']} dropped."
    )
    lines += [f"  to be measured: {', '.join(workspace.pending.site)}"] * bool(counts["planned"])
    if state.settings["fit"] is not None:
        fit = Fit.of(state.settings["fit"])
        above = " above zero, and another one where they are" if state.settings.get("presence_fit") else ""
        again = round(np.ceil(REFIT.growth * fit.count))
        trend = f" and a trend in {', '.join(fit.trend['names'])}" if fit.trend else ""
        lines.append(
            f"Model: Gaussian process with kernel {fit.kernel}{trend}. It uses all measurements{above}. Its "
            f"lengthscales were learned from {fit.count:,} of them, and will be learned again when there are {again:,}."
        )
        columns = state.settings["columns"]
        known = columns["error"] is not None or columns["of"] is not None or bool(workspace.below.any())
        lines += Structure.of(fit, known).sentences(measured_on(workspace.quantity, workspace.scale.name))
    lines.append(f"Area: {workspace.region.area / 1e6:,.4g} km².")
    return "\n".join(lines)
