"""Scalable Gaussian process surrogates for Bayesian optimisation and active learning with BoTorch."""

from importlib.metadata import version

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
from bo_scale.models.inputs import PrincipalAxes
from bo_scale.models.shell.storage import load_model, save_model
from bo_scale.models.shell.student_t import StudentTNoise
from bo_scale.models.softki import SoftKI
from bo_scale.models.wiski.classifier import WISKIClassifier
from bo_scale.models.wiski.model import WISKI
from bo_scale.models.wiski.online import OnlineLearner
from bo_scale.models.wiski.online_classifier import OnlineClassifier

__version__ = version("bo_scale")

__all__ = [
    "GRIEF",
    "WISKI",
    "AveragedEnsemble",
    "CaGP",
    "ChoiceReport",
    "DecoupledGP",
    "GRIEFBayes",
    "LinearProjection",
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
