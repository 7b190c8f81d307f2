"""``python -m ledger`` is the command ``kvledger``."""

import sys

from ledger.cli import main

if __name__ == "__main__":
    sys.exit(main())
