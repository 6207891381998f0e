"""Settings shared by all tests: one thread, so that a busy machine slows them gently."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")

import torch

torch.set_num_threads(1)
