"""The command ``exactspec``, started as ``python -m exactspec``."""

import sys

from exactspec.console import main

if __name__ == "__main__":
    sys.exit(main())
