"""Train what the tuning examples tune: a support vector classifier of handwritten digits, on principal components.

Data: scikit-learn's handwritten digits. Time: about a second a training.

Workers import this module and nothing else, so it does not import Ax or torch, which takes seconds.
"""

import pickle
from typing import Any

from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

FOLDS = 3


def classifier(C: float, gamma: float, components: int, scaling: str) -> Pipeline:
    """A classifier of 8 × 8 pixels, each from 0 to 16."""
    scaler = StandardScaler() if scaling == "standard" else "passthrough"
    return make_pipeline(scaler, PCA(components, random_state=0), SVC(C=C, gamma=gamma))


def train(point: dict[str, Any]) -> dict[str, Any]:
    """Its error in cross-validation (%) and its size (kB)."""
    pixels, digits = load_digits(return_X_y=True)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    accuracy = cross_val_score(classifier(**point), pixels, digits, cv=folds).mean()
    size = len(pickle.dumps(classifier(**point).fit(pixels, digits))) / 1000
    return {"error": 100 * (1 - accuracy), "size": size}
