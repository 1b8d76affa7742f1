"""Run the command line: `python -m bo_scale`."""

import sys

from bo_scale.cli import main

sys.exit(main())
