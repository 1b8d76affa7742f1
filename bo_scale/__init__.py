"""Scalable Gaussian process surrogates for Bayesian optimisation and active learning with BoTorch.

Names are imported when they are first used: the command line answers without PyTorch where it can.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bo_scale.decisions.acquisition import qLogPlugInExpectedImprovement, qNegIntegratedPosteriorVariance
    from bo_scale.decisions.paths import draw_posterior_functions
    from bo_scale.gp.weight_space.features.projection import LinearProjection
    from bo_scale.models.cagp import CaGP
    from bo_scale.models.choice.choose import choose
    from bo_scale.models.choice.report import ChoiceReport
    from bo_scale.models.decoupled import DecoupledGP
    from bo_scale.models.grief.averaged import AveragedEnsemble
    from bo_scale.models.grief.bayes import GRIEFBayes
    from bo_scale.models.grief.model import GRIEF
    from bo_scale.models.inputs import LogScales, PrincipalAxes
    from bo_scale.models.outcomes import LogNormalPosterior, LogTargets
    from bo_scale.models.shell.storage import load_model, save_model
    from bo_scale.models.shell.student_t import StudentTNoise
    from bo_scale.models.softki import SoftKI
    from bo_scale.models.wiski.classifier import WISKIClassifier
    from bo_scale.models.wiski.model import WISKI
    from bo_scale.models.wiski.online import OnlineLearner
    from bo_scale.models.wiski.online_classifier import OnlineClassifier

__all__ = [
    "GRIEF",
    "WISKI",
    "AveragedEnsemble",
    "CaGP",
    "ChoiceReport",
    "DecoupledGP",
    "GRIEFBayes",
    "LinearProjection",
    "LogNormalPosterior",
    "LogScales",
    "LogTargets",
    "OnlineClassifier",
    "OnlineLearner",
    "PrincipalAxes",
    "SoftKI",
    "StudentTNoise",
    "WISKIClassifier",
    "choose",
    "draw_posterior_functions",
    "load_model",
    "qLogPlugInExpectedImprovement",
    "qNegIntegratedPosteriorVariance",
    "save_model",
]
HOMES = {
    "GRIEF": "models.grief.model",
    "WISKI": "models.wiski.model",
    "AveragedEnsemble": "models.grief.averaged",
    "CaGP": "models.cagp",
    "ChoiceReport": "models.choice.report",
    "DecoupledGP": "models.decoupled",
    "GRIEFBayes": "models.grief.bayes",
    "LinearProjection": "gp.weight_space.features.projection",
    "OnlineClassifier": "models.wiski.online_classifier",
    "OnlineLearner": "models.wiski.online",
    "LogNormalPosterior": "models.outcomes",
    "LogScales": "models.inputs",
    "LogTargets": "models.outcomes",
    "PrincipalAxes": "models.inputs",
    "SoftKI": "models.softki",
    "StudentTNoise": "models.shell.student_t",
    "WISKIClassifier": "models.wiski.classifier",
    "choose": "models.choice.choose",
    "draw_posterior_functions": "decisions.paths",
    "load_model": "models.shell.storage",
    "qLogPlugInExpectedImprovement": "decisions.acquisition",
    "qNegIntegratedPosteriorVariance": "decisions.acquisition",
    "save_model": "models.shell.storage",
}
"""The module of each name."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a name from its module; `__version__` is looked up in the installed package.

        Raises:
            AttributeError: if there is no such name.
        """
        if name == "__version__":
            return import_module("importlib.metadata").version("bo_scale")
        if name not in HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
        return found

    def __dir__() -> list[str]:
        """Return all names, also those not imported yet."""
        return sorted({*globals(), *HOMES, "__version__"})
