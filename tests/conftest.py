"""Tests compare the numbers of one thread on a CPU: the same on every machine."""

import os

from hypothesis import settings

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["OMP_NUM_THREADS"] = "1"

settings.register_profile("shared", deadline=None, derandomize=True)  # the machine is shared
settings.load_profile("shared")
