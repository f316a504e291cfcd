"""Small sites whose results are written down: what a change of formats or of structure must leave as it is."""

import sys
from pathlib import Path

SUPPORT = str(Path(__file__).parents[1] / "support")
if SUPPORT not in sys.path:  # pytest has it there; `python -m tests.frozen` has not
    sys.path.append(SUPPORT)
