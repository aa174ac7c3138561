"""``python -m tests.gpu``: see the package."""

import sys

from tests.gpu.program import main

sys.exit(main())
