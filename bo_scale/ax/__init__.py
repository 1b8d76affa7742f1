"""The models as surrogates of Ax experiments. Import this before loading a saved one: it registers them with Ax."""

from bo_scale.ax.automatic import Automatic, Choice, choose
from bo_scale.ax.registry import register
from bo_scale.ax.strategy import generation_strategy, model_config, streaming
from bo_scale.ax.stream import Stream

register()

__all__ = ["Automatic", "Choice", "Stream", "choose", "generation_strategy", "model_config", "streaming"]
