"""A fitted survey whose first worker is killed; of a module, which worker processes can import."""

import os
import signal
from dataclasses import dataclass
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

from bo_scale.survey.fitted import FittedSurvey


@dataclass(frozen=True)
class KilledOnce(FittedSurvey):
    """A fitted survey that kills the first process of a pool that predicts with it, and makes a file then."""

    killed: Path | None = None

    def values(self, *given: Any, **more: Any) -> Any:
        if self.killed is not None and parent_process() is not None and not self.killed.exists():
            self.killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().values(*given, **more)
