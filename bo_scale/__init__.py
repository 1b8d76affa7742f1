"""Scalable Gaussian process surrogates for Bayesian optimisation and active learning with BoTorch."""

from bo_scale.acquisition import qLogPlugInExpectedImprovement, qNegIntegratedPosteriorVariance
from bo_scale.features.projection import LinearProjection
from bo_scale.models.averaged import AveragedEnsemble
from bo_scale.models.cagp import CaGP
from bo_scale.models.classifier import WISKIClassifier
from bo_scale.models.decoupled import DecoupledGP
from bo_scale.models.grief import GRIEF
from bo_scale.models.grief_bayes import GRIEFBayes
from bo_scale.models.softki import SoftKI
from bo_scale.models.storage import load_model, save_model
from bo_scale.models.wiski import WISKI
from bo_scale.online import OnlineLearner
from bo_scale.online_classifier import OnlineClassifier
from bo_scale.pathwise import draw_posterior_functions

__all__ = [
    "GRIEF",
    "WISKI",
    "AveragedEnsemble",
    "CaGP",
    "DecoupledGP",
    "GRIEFBayes",
    "LinearProjection",
    "OnlineClassifier",
    "OnlineLearner",
    "SoftKI",
    "WISKIClassifier",
    "draw_posterior_functions",
    "load_model",
    "qLogPlugInExpectedImprovement",
    "qNegIntegratedPosteriorVariance",
    "save_model",
]
