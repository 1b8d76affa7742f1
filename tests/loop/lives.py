"""A run that is killed at given moments, by SIGKILL, and taken up again each time; then left to its end.

    python lives.py FOLDER ASKS EVENTS…

Every life works on the journal in FOLDER in a process of its own, and is killed when it has acknowledged so many EVENTS
(wherever it is in the next one); the last goes on to so many ASKS. Printed is one line of JSON a life: how many events
it acknowledged, and whether a second Optimizer was refused while it lived.
"""

import json
import os
import signal
import sys
import warnings
from pathlib import Path

import seeds
import torch
from loops import act, cheap

from bo_scale.errors import BoScaleWarning, JournalLockedError


def live(folder: Path, asks: int, acknowledge: int, moment: int | None) -> None:
    """A byte for each event, once it is over. Who is to be killed waits for it two events later, however long."""
    over = 0
    with cheap(folder) as loop:
        os.write(acknowledge, b"o")
        while len(loop.steps) < asks:
            act(loop)
            os.write(acknowledge, b"a")
            over += 1
            while moment is not None and over == moment + 2:
                signal.pause()


def refused(folder: Path) -> bool:
    """Whether the journal is held by somebody."""
    try:
        cheap(folder).close()
    except JournalLockedError:
        return True
    return False


def main(folder: Path, asks: int, moments: list[int | None]) -> None:
    for moment in moments:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                live(folder, asks, writer, moment)
                os._exit(0)
            finally:
                os._exit(1)  # nothing that is raised may go on with the tests of the parent
        os.close(writer)
        opened, second, count = os.read(reader, 1), refused(folder), 0
        assert opened == b"o"
        while count != moment and os.read(reader, 1):
            count += 1
        if moment is not None:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        while os.read(reader, 1):
            count += 1
        os.close(reader)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        life = {"killed": killed, "status": status, "acknowledged": count, "refused": second}
        sys.stdout.write(json.dumps(life) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("TEST_THREADS", "1")))
    seeds.shift_as_parent()
    warnings.simplefilter("ignore", BoScaleWarning)
    main(Path(sys.argv[1]), int(sys.argv[2]), [*map(int, sys.argv[3:]), None])
