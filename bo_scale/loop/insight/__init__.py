"""Insights from the model of a loop: predictions, suspects, cross-validation, importance of parameters."""

from bo_scale.loop.insight.cross_validation import CrossValidation, cross_validate
from bo_scale.loop.insight.importance import Importance, Importances, importance
from bo_scale.loop.insight.leave_one_out import LeaveOneOut, Suspect, at_hyperparameters, leave_one_out, suspects
from bo_scale.loop.insight.predict import Estimate, Prediction, predict
from bo_scale.loop.insight.success import success

__all__ = [
    "CrossValidation",
    "Estimate",
    "Importance",
    "Importances",
    "LeaveOneOut",
    "Prediction",
    "Suspect",
    "at_hyperparameters",
    "cross_validate",
    "importance",
    "leave_one_out",
    "predict",
    "success",
    "suspects",
]
