"""Python imports this module at its start if its folder is on the path: a worker then finds an emulated GPU.

Workers have one if CUDA_VISIBLE_DEVICES begins with ``emulated``.
"""

import os
import sys

if "service.worker.main" in sys.orig_argv and os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("emulated"):
    from tests.device.worker_gpu import install

    install()
