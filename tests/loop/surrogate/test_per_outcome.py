import torch
from outcomes import CONSTRAINED, SPACE, cheap, go, measured

# ---------------------------------------------------------------- the loop


def test_every_outcome_has_the_model_that_it_would_have_alone() -> None:
    loop = cheap(space=SPACE, **CONSTRAINED)
    found = go(loop, 3)
    for j, (name, sign) in enumerate([("loss", -1.0), ("cost", 1.0)]):
        alone = cheap(space=SPACE, acquisition=lambda s: torch.rand(s.q, 2, dtype=torch.float64))
        for points in found:
            alone.ask(2)
            alone.tell(points, [sign * each[name] for each in measured(points, (name,))])
        X = torch.rand(5, 2, dtype=torch.float64)
        ours, theirs = loop.model.models[j].posterior(X), alone.model.posterior(X)
        torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(ours.variance, theirs.variance, rtol=1e-6, atol=1e-8)
