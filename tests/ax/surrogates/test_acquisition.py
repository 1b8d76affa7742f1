from typing import Any

import pytest
import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from clients import client, run

from bo_scale import qNegIntegratedPosteriorVariance
from bo_scale.ax.surrogates.acquisition import StreamingAcquisition

pytestmark = pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")


@pytest.mark.parametrize(("model", "draws"), [("grief_bayes", 32), ("wiski", 128)])
def test_members_of_an_ensemble_take_fewer_draws_for_a_hypervolume(
    model: str, draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    samplers: list[Any] = []
    optimize = StreamingAcquisition.optimize

    def spy(self: StreamingAcquisition, *args: Any, **kwargs: Any) -> Any:
        samplers.append(self.acqf.sampler)
        return optimize(self, *args, **kwargs)

    monkeypatch.setattr(StreamingAcquisition, "optimize", spy)
    made = client(model, objective="-loss, gain")
    run(made, 6, ("loss", "gain"))
    assert [sampler.sample_shape for sampler in samplers] == [torch.Size([draws])]


def test_acquisitions() -> None:
    def kind(acquisition: Any, objective: str = "-loss", names: tuple[str, ...] = ("loss",)) -> str:
        made = client(acquisition=acquisition, objective=objective)
        run(made, 6, names)
        return type(made._generation_strategy.adapter.generator._acquisition.acqf).__name__

    assert kind(None) == "qLogPlugInExpectedImprovement"
    assert kind(None, "-loss, gain", ("loss", "gain")) == "qLogNoisyExpectedHypervolumeImprovement"
    for each in (qLogNoisyExpectedImprovement, qNegIntegratedPosteriorVariance):
        assert kind(each) == each.__name__
