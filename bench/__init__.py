"""Speed, measured: each bench states its figures as ratios against limits of the same run."""

import sys
from pathlib import Path

# The makers of batches and ledgers that the tests use import each other from their own folder.
sys.path.append(str(Path(__file__).parents[1] / "tests"))
