"""The evidence of a batch against the dense density, and Adam over batches."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from bo_scale.errors import NotPositiveDefiniteError
from bo_scale.gp.weight_space.features.softmax import softmax_weights
from bo_scale.training import minibatch
from bo_scale.training.minibatch import batch_log_evidence, pseudo_log_evidence, train_on_batches

P = 10
NOISE = torch.tensor(0.05, dtype=torch.float64)


def rbf(Z: Tensor, lengthscale: Tensor) -> Tensor:
    return torch.exp(-0.5 * ((Z.unsqueeze(1) - Z) / lengthscale).square().sum(-1))


def problem(b: int, singular: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """X, points, lengthscale, y and D."""
    g = torch.Generator().manual_seed(0)
    X, Z = torch.rand(b, 2, generator=g, dtype=torch.float64), torch.rand(P, 2, generator=g, dtype=torch.float64)
    if singular:
        Z[5:8] = Z[:3]
    y = torch.sin(4 * X.sum(-1)) + 0.1 * torch.randn(b, generator=g, dtype=torch.float64)
    return X, Z, torch.tensor(0.5).double(), y, 0.3 + 2 * X[:, 0]


def features(X: Tensor, Z: Tensor, lengthscale: Tensor) -> tuple[Tensor, Tensor]:
    return softmax_weights(X, Z, torch.full((2,), 0.2, dtype=torch.float64)), rbf(Z, lengthscale)


def dense(W: Tensor, S: Tensor, y: Tensor, D: Tensor, noise: Tensor) -> Tensor:
    return MultivariateNormal(torch.zeros_like(y), W @ S @ W.mT + torch.diag(noise * D)).log_prob(y)


# ---------------------------------------------------------------- the evidence of a batch


@pytest.mark.parametrize("singular", [False, True])
@pytest.mark.parametrize("b", [1, P // 2, P // 2 + 1, 40])
def test_the_evidence_of_a_batch_and_its_gradient_equal_the_dense_density(b: int, singular: bool) -> None:
    """By b × b matrices up to p/2 rows, by p × p matrices for more."""
    X, Z, lengthscale, y, D = problem(b, singular)
    W, S = features(X, Z, lengthscale)
    arguments = [v.clone().requires_grad_() for v in (W, S, y, NOISE)]
    values = [f(arguments[0], arguments[1], arguments[2], D, arguments[3]) for f in (batch_log_evidence, dense)]
    torch.testing.assert_close(values[0], values[1], rtol=1e-10, atol=1e-10)
    gradients = [torch.autograd.grad(value, arguments) for value in values]
    for a, b_ in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b_, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("b", [4, 40])
def test_what_is_not_finite_is_refused(b: int) -> None:
    X, Z, lengthscale, y, D = problem(b, False)
    W, S = features(X, Z, lengthscale)
    for i in range(3):
        spoiled = [W.clone(), S.clone(), y.clone()]
        spoiled[i][0] = torch.nan
        if b == 4 and i == 2:
            continue  # the targets enter no factorisation there: the number is NaN
        with pytest.raises(NotPositiveDefiniteError):
            batch_log_evidence(*spoiled, D, NOISE)


# ---------------------------------------------------------------- the pseudoloss


def gradients(evidence: Callable[..., Tensor], b: int, y_scale: float = 1.0) -> Tensor:
    """In the points, the lengthscale and y: all that W, S and y depend on."""
    X, Z, lengthscale, y, D = problem(b, False)
    learned = [Z.requires_grad_(), lengthscale.requires_grad_(), (y_scale * y).requires_grad_()]
    W, S = features(X, Z, lengthscale)
    found = torch.autograd.grad(evidence(W, S, learned[2], D, NOISE), learned)
    return torch.cat([g.reshape(-1) for g in found])


def test_the_gradient_of_the_pseudoloss_is_unbiased() -> None:
    draws = torch.stack(
        [
            gradients(lambda *a, s=s: pseudo_log_evidence(*a, torch.Generator().manual_seed(s)), 30)  # type: ignore[misc]
            for s in range(300)
        ]
    )
    exact, error = gradients(dense, 30), draws.std(0) / len(draws) ** 0.5
    random = error > 1e-6
    assert random.sum() >= 2 * P + 1
    assert ((draws.mean(0) - exact)[random].abs() < 5 * error[random]).all()
    assert ((draws.mean(0) - exact) / error)[random].square().mean() < 5.0
    torch.testing.assert_close(draws.mean(0)[~random], exact[~random], rtol=1e-3, atol=1e-3)


def test_the_quadratic_part_of_the_pseudoloss_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of the gradient without targets is the trace, the same for the same probes."""
    monkeypatch.setattr(minibatch, "CG_TOLERANCE", 1e-6)

    def pseudo(*a: Tensor) -> Tensor:
        return pseudo_log_evidence(*a, torch.Generator().manual_seed(3))

    ours, exact = (gradients(f, 30) - gradients(f, 30, y_scale=0.0) for f in (pseudo, dense))
    torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-4)


def test_the_trace_of_the_pseudoloss_is_exact_with_probes_for_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of a Hadamard matrix are signs with Σ a aᵀ/L = I: no variance is left."""
    monkeypatch.setattr(minibatch, "CG_TOLERANCE", 1e-6)
    monkeypatch.setattr(minibatch, "PROBES", 32)
    hadamard = torch.ones(1, 1, dtype=torch.long)
    for _ in range(5):
        hadamard = torch.cat([torch.cat([hadamard, hadamard], 1), torch.cat([hadamard, -hadamard], 1)])
    monkeypatch.setattr(torch, "randint", lambda *a, **k: (hadamard + 1) // 2)
    ours = gradients(lambda *a: pseudo_log_evidence(*a, torch.Generator()), 32)
    torch.testing.assert_close(ours, gradients(dense, 32), rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- training

TARGETS = torch.linspace(-1.0, 3.0, 23, dtype=torch.float64)


def train(seed: int = 0, epochs: int = 4, progress: bool | None = False) -> tuple[Tensor, list[Tensor]]:
    """The mean of 23 numbers in batches of 5: what was learned, and the batches."""
    w, batches = torch.nn.Parameter(torch.zeros((), dtype=torch.float64)), []

    def loss(batch: Tensor) -> Tensor:
        batches.append(batch)
        return (w - TARGETS[batch]).square().mean()

    train_on_batches(loss, {"w": w}, {}, 23, epochs, batch_size=5, lr=0.1, seed=seed, progress=progress)
    return w.detach(), batches


def test_every_row_is_seen_once_an_epoch_in_a_new_order() -> None:
    batches = train()[1]
    assert [len(b) for b in batches] == 4 * [5, 5, 5, 5, 3]
    orders = torch.cat(batches).reshape(4, 23)
    assert (orders.sort(-1).values == torch.arange(23)).all()
    assert len(orders.unique(dim=0)) == 4


def test_the_order_is_that_of_the_seed_and_global_randomness_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    (a, order_a), (b, order_b), (c, order_c) = train(0), train(0), train(1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(a, b)
    assert torch.equal(torch.cat(order_a), torch.cat(order_b))
    assert not torch.equal(a, c)
    assert not torch.equal(torch.cat(order_a), torch.cat(order_c))


def test_it_learns() -> None:
    torch.testing.assert_close(train(epochs=60)[0], TARGETS.mean(), rtol=0, atol=0.16)
    assert torch.equal(train(epochs=0)[0], torch.zeros((), dtype=torch.float64))


@pytest.mark.parametrize(("progress", "shown"), [(True, True), (False, False), (None, False)])
def test_a_progress_bar_is_shown_only_when_asked_for(
    progress: bool | None, shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """None is for terminals, and this is none."""
    train(progress=progress)
    out, err = capsys.readouterr()
    assert out == ""
    assert ("epochs" in err and "loss=" in err) == shown
    assert bool(err) == shown
