"""Questions that the measurements answer, each a page of the documentation."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Question:
    """One page of measurements.

    Attributes:
        page: Name of the page.
        title: The question.
        asked: What was asked, on what and against whom.
        weaker: What is weaker than hoped.
        cases: The cases that answer it, in order.
    """

    page: str
    title: str
    asked: str
    weaker: str
    cases: tuple[str, ...]


QUESTIONS = (
    Question(
        "one-observation",
        "What does one more observation cost?",
        "Models condition on one observation and predict one variance, after 100 to 1,000,000 observations on "
        "simulated data. The rival is BoTorch's `SingleTaskGP`, in the same run.",
        "`CaGP` and `DecoupledGP` keep their rows, so their cost grows with n.",
        ("streaming", "conditioning"),
    ),
    Question(
        "online",
        "How well do models learn online?",
        "Each model sees every row once, in order, and takes one gradient step per row, on UCI data, labels "
        "and exchange rates. The rivals are an exact GP, a streaming SVGP and the same model fitted to all "
        "rows at once.",
        "On elevators one pass ends 4.7 % above the batch fit. A step becomes slower as lengthscales shrink "
        "and the rank of the prior grows, up to the number of grid points.",
        ("online", "labels"),
    ),
    Question(
        "regression",
        "How well do the models predict?",
        "Test error, log likelihood, coverage and training time on UCI data sets and simulated functions. The "
        "rivals are GPyTorch's SVGP and SGPR, and an exact GP where it fits into memory.",
        "SGPR predicts skillcraft better than `SoftKI`. With learned actions `CaGP` covers all of parkinsons: "
        "its intervals are too wide there, and tighter ones score better. Without its closed form "
        "`DecoupledGP` needs far more training than SVGP.",
        ("uci", "softki_step", "cagp", "decoupled", "grief_eigenfunctions"),
    ),
    Question(
        "a-million-rows",
        "What do a million rows take?",
        "Fits, updates and fully Bayesian sampling on 10⁶ simulated rows. No exact GP is a rival here: its "
        "kernel matrix would take 8 TB.",
        "A fit of `SoftKI` takes about four minutes, nearly all of it training by batches.",
        ("million", "bayes"),
    ),
    Question(
        "grids",
        "How fine must a grid be, and how large may it be?",
        "The evidence and its gradient on grids of up to 100,000 points, the error of interpolation, and a "
        "field of 105,569 satellite temperatures. The rivals are SVGP and an exact GP.",
        "Matérn-1/2 kernels have no low rank: in three dimensions their grids stay small.",
        ("evidence", "grid", "interpolation"),
    ),
    Question(
        "look-ahead",
        "What do look-ahead acquisition functions cost?",
        "One evaluation of qNIPV and of knowledge gradient with their gradients, and Thompson batches of 10 "
        "to 1,000 points. The rivals are BoTorch's own functions with `SingleTaskGP`.",
        "The closed form of qNIPV needs a model with features; for others BoTorch's own function is there.",
        ("nipv", "kg", "thompson"),
    ),
    Question(
        "optimisation",
        "Does the loop find better values?",
        "Regret of whole runs on noisy test functions, 20 to 40 seeds each, and the time of a step at n = "
        "4,500. The rival is the same loop with `SingleTaskGP`.",
        "On Rastrigin the upper 90 % bound of the mean difference is 2 % of the range. Learned actions of "
        "`CaGP` lose to conjugate gradients in optimisation.",
        ("bo_step", "bo_regret", "missing_variance", "cagp_regret"),
    ),
    Question(
        "long-runs",
        "What does an ask cost, and what survives a crash?",
        "Asks of the loop at up to 100,000 observations, memory over 1,500 batches, kills at random moments, "
        "and a day of 913 evaluations by bad workers. The rival for asks is Ax.",
        "With ten inputs and 100,000 rows a Thompson batch of ten takes a second.",
        ("loop_overhead", "memory", "kills", "soak"),
    ),
    Question(
        "ax",
        "What does a trial of Ax cost, and what does it find?",
        "Seconds a trial at up to 3,000 trials and regret after 60 trials, 20 seeds. The rival is Ax's "
        "default surrogate.",
        "With a few dozen trials `SoftKI` finds worse values than Ax's default. Half of the remaining seconds "
        "are Ax's own bookkeeping.",
        ("ax_overhead", "ax_quality"),
    ),
    Question(
        "active-learning",
        "Where should one measure next?",
        "Sites chosen by integrated variance on five real fields, in batches, beside random, maximin, Latin "
        "hypercube and stratified designs, and beside an exact GP.",
        "On malaria the exact GP with the same kernel ends with a smaller error, 0.0337 against 0.0353, and "
        "takes half the time up to 1,510 sites. Point by point, coverage leaves the range of 92 to 98 % three "
        "times. With `WISKI` the sites are 1 % behind maximin on meuse.",
        ("malaria", "malaria_seeds", "survey"),
    ),
    Question(
        "surveys",
        "How good are the maps, and how large may a survey be?",
        "Maps of five real fields from 100 to 254,579 sites. The rival is ordinary kriging by PyKrige, the "
        "better of its two ways.",
        "Between tracks of many readings maps can have seams. On our side times from 2,000 rows were measured "
        "beside another process and are up to half too long.",
        ("survey_size", "kriging"),
    ),
    Question(
        "tours",
        "What is a day in the field worth?",
        "Value per kilometre of a day's tour on real fields, 20 surveys each. The rival visits the best sites "
        "by the shortest way between them.",
        "The planner is a heuristic: how far it is from the best tour is only known for small problems.",
        ("travel",),
    ),
)
ON_README = ("streaming", "nipv", "bo_step", "loop_overhead", "ax_overhead", "kriging")
"""Cases whose first row is in README.md."""
