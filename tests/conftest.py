"""Settings shared by all tests: one thread, so that a busy machine slows them gently."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")

import torch

torch.set_num_threads(1)

from hypothesis import settings as hypothesis_settings

hypothesis_settings.register_profile("agentverl", deadline=None, max_examples=40, derandomize=True, print_blob=True)
hypothesis_settings.load_profile("agentverl")
