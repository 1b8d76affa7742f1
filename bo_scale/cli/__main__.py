"""Run the command line: `python -m bo_scale.cli`."""

import sys

from bo_scale.cli import main

sys.exit(main())
