import torch
from settings import NAMES, model, setting

from bo_scale.decisions.by_name import acquisition_kind
from bo_scale.decisions.propose import propose


@NAMES
def test_every_acquisition_takes_pending_points_into_account(name: str) -> None:
    m = model()
    torch.manual_seed(0)
    alone = propose(acquisition_kind(name).make, setting(m, q=1))
    torch.manual_seed(0)
    beside = propose(acquisition_kind(name).make, setting(m, q=1, pending=alone))
    least = 1e-6 if name == "qKG" else 1e-3  # a second value at nearly the same place teaches, too
    assert (alone - beside).abs().max() >= least


@NAMES
def test_what_is_proposed_does_not_depend_on_the_unit_of_the_values(name: str) -> None:
    """A power of two, so that the standardised targets and hence the models are the same to the last bit."""
    X, options = [], {"num_restarts": 4, "raw_samples": 32, "max_steps": 60}
    small = (2.0**-10, 2.0**-40)  # a search by a logarithm ends a little sooner for larger values
    for scale in small if "Log" in name else (1.0, 2.0**-40, 2.0**30):
        torch.manual_seed(0)
        X.append(propose(acquisition_kind(name).make, setting(model(scale=scale), q=1, **options)))
    for x in X[1:]:
        torch.testing.assert_close(x, X[0], rtol=0, atol=1e-4)


def test_beta_counts() -> None:
    m = model()
    values = [acquisition_kind("qUCB").make(setting(m, beta=beta))(m.train_inputs[0][:1]).item() for beta in (0.1, 9.0)]
    assert values[0] < values[1]
