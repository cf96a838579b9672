"""`python -m hylorada` is the command `hylorada`; launchers such as torchrun need it."""

import sys

from hylorada.cli import main

sys.exit(main())
