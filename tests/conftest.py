"""Tests compare the numbers of one thread on a CPU: the same on every machine."""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["OMP_NUM_THREADS"] = "1"
