"""Errors and warnings of the package. Every message names the argument at fault and the remedy."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bo_scale.positive_definite import NotPositiveDefiniteError as NotPositiveDefiniteError

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import the error whose base is linear_operator's; with it comes PyTorch, which no other error needs.

        Raises:
            AttributeError: if there is no such name.
        """
        if name != "NotPositiveDefiniteError":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module("bo_scale.positive_definite").NotPositiveDefiniteError


class BoScaleError(Exception):
    """Base of every error the package raises on purpose."""


class InvalidDataError(BoScaleError, ValueError):
    """Data that cannot be used: NaN, inf, or a shape that does not fit."""


class InvalidArgumentError(BoScaleError, ValueError):
    """An argument, or a combination of arguments, that is not allowed."""


class WrongTypeError(BoScaleError, TypeError):
    """An object of a type that the operation does not support."""


class MissingDependencyError(BoScaleError, ImportError):
    """An optional package is needed but not installed; the message says how to install it."""


class GridError(BoScaleError, ValueError):
    """A grid that cannot be built, or a point where its interpolation is undefined."""


class UnsupportedKernelError(BoScaleError, TypeError):
    """A kernel that does not factorise over the input dimensions."""


class SpaceError(BoScaleError, ValueError):
    """A search space that cannot be used, or points outside it."""


class JournalError(BoScaleError, RuntimeError):
    """A journal that cannot be used: damaged before its last line, changed by others, or of another optimisation."""


class JournalLockedError(JournalError):
    """Another process, or another Optimizer in this process, holds the same journal."""


class SurveyError(BoScaleError, ValueError):
    """A table, an area or a state that a survey cannot use."""


class RunnerError(BoScaleError, RuntimeError):
    """Trials that cannot be run: the folder belongs to another experiment, or the system cannot start a process."""


class MissingOutcomeError(RunnerError, KeyError):
    """A trial's function did not return an outcome that the experiment needs."""

    __str__ = RunnerError.__str__  # a KeyError would show the message in quotes


class BoScaleWarning(UserWarning):
    """Base of every warning the package gives."""


class DataWarning(BoScaleWarning):
    """Data that are used, but that a model can hardly learn from; the message says why."""


class JitterWarning(BoScaleWarning):
    """A jitter was added to a matrix; the message says how much."""


class InterpolationWarning(BoScaleWarning):
    """The grid is too coarse for the kernel: interpolation error is not small beside the noise."""


class ApproximationWarning(BoScaleWarning):
    """An approximation is too small for the data: intervals are wider than need be, or changes count as noise."""


class JournalWarning(BoScaleWarning):
    """A flaw in a journal's folder that was dealt with, such as a torn last line or an unreadable snapshot."""


class TransferWarning(BoScaleWarning):
    """Ax and the loop have different data of a trial; the message names the trials and how to carry the data over."""


class FitWarning(BoScaleWarning):
    """A fit from one starting point failed, a step was undone, or options were ignored."""


class SamplingWarning(BoScaleWarning):
    """Chains have not mixed, so their draws may not represent the posterior."""


class SurveyWarning(BoScaleWarning):
    """Part of a survey was set aside, or something was assumed; the message says what."""
