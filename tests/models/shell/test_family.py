import inspect

import pytest
import torch
from cases import MODELS, data

from bo_scale.models.shell.family import Family
from bo_scale.models.shell.model import ScalableModel

REQUIRED = {name for name, value in vars(Family).items() if getattr(value, "__isabstractmethod__", False)}


def test_a_family_must_define_posterior_prior_and_objective() -> None:
    defined = REQUIRED - {"inference"}  # by the shell
    assert defined == {"_infer", "_restored_inference", "_prior_covariance", "_log_evidence", "num_observations"}
    assert defined <= ScalableModel.__abstractmethods__
    with pytest.raises(TypeError, match="abstract"):
        ScalableModel()


@pytest.mark.parametrize(("d", "build"), MODELS[:1])
def test_defaults_are_those_of_a_model_without_anything_of_its_own(d, build) -> None:
    model = build(*data(6, d))
    assert not inspect.isabstract(type(model))
    assert Family._feature_parameters(model) == []
    one = torch.ones(1, dtype=torch.float64)
    assert Family._inference_in_units(model, one, one) is None
    assert Family._evidence_size(model) == 6.0
    none = (values[:0] for values in data(6, d))
    assert Family._evidence_size(build(*none, outcome_transform=None)) == 1.0
    model.eval().posterior(data(2, d)[0])
    Family._forget_inference(model)
    assert model._inference is None
