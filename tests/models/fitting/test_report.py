import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood

from bo_scale import GRIEF, WISKI, CaGP, DecoupledGP, SoftKI
from bo_scale.errors import FitWarning
from bo_scale.models.fitting.report import FitReport, Recorder

g = torch.Generator().manual_seed(0)
X = torch.rand(60, 2, dtype=torch.float64, generator=g)
Y = (5 * X).sin().sum(-1, keepdim=True) + 0.1 * torch.randn(60, 1, dtype=torch.float64, generator=g)
FEW = {"optimizer_kwargs": {"options": {"maxiter": 3}}}
CASES = {
    "WISKI": (lambda: WISKI(X, Y, grid_size=16), 1),
    "SoftKI": (lambda: SoftKI(X, Y, num_interpolation_points=20, epochs=2, progress=False), 4),
    "GRIEF": (lambda: GRIEF(X, Y, num_eigenfunctions=30, weights="type2"), 3),
    "CaGP": (lambda: CaGP(X, Y, num_actions=10, epochs=2, progress=False), 2),
    "DecoupledGP": (lambda: DecoupledGP(X, Y, num_mean_inducing=20, num_covar_inducing=8, num_steps=0), 1),
}


@pytest.mark.parametrize("name", list(CASES))
def test_a_fit_says_what_it_did(name: str) -> None:
    build, stages = CASES[name]
    model = build()
    assert model.fit_report is None
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), **FEW)
    report = model.fit_report
    assert report.model == name
    assert len(report.stages) == stages
    assert report.noise == pytest.approx(model.mean_noise.tolist())
    assert report.seconds >= sum(stage.seconds for stage in report.stages) > 0
    for part in (name, "noise variance", "lengthscales", *(stage.name for stage in report.stages)):
        assert part in str(report)
    if report.evidence_before is not None:
        assert report.evaluations > 0
        assert report.evidence_after >= report.evidence_before - 1e-9 or len(report.stages) > 1


def test_evidence_before_and_after_is_the_models_own() -> None:
    model = WISKI(X, Y, grid_size=16)
    before = model._log_evidence().sum().item()
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    report = model.fit_report
    assert report.evidence_before == pytest.approx(before)
    assert report.evidence_after >= model._log_evidence().sum().item() - 1e-6 > before


def test_conditioned_models_have_the_report_of_their_fit_and_pickles_too() -> None:
    model = WISKI(X, Y, grid_size=16)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), **FEW)
    assert model.condition_on_observations(X[:1], Y[:1]).fit_report is model.fit_report


def test_a_recorder_keeps_what_happened_in_each_stage() -> None:
    record = Recorder()
    with record.stage("one"):
        record.evaluated(torch.tensor([1.0, 2.0]))
        record.evaluated(torch.tensor([4.0, 3.0]))
        record.evaluated(torch.tensor([float("nan"), 3.0]))
    with pytest.raises(KeyError), record.stage("two"):
        raise KeyError
    with pytest.warns(FitWarning, match="given up"):
        record.warn("given up", FitWarning)
    record.note("chosen")
    one, two = record.stages
    assert (one.evaluations, one.before, one.after) == (3, 3.0, 7.0)
    assert (two.name, two.evaluations, two.before) == ("two", 0, None)
    report = FitReport("Model", (one, two), (0.1,), ([[0.5, 2.0]],), ("chosen",), ("given up",), 1.5)
    text = str(report)
    assert "Model: fitted in 1.5 s, 3 evaluations" in text
    assert "one: 3 evaluations" in text
    assert "evidence 3 → 7" in text
    assert "lengthscales [[0.5, 2]]" in text
    assert "note: chosen" in text
    assert "warning: given up" in text
    assert (report.evidence_before, report.evidence_after) == (3.0, 7.0)
