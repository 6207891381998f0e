"""Settings shared by all tests: one thread, so that a busy machine slows them gently; examples that repeat."""

import os
import secrets
import signal

import torch
from hypothesis import settings

# For the processes that tests start; this one is told below.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")
# Ray reads its token once a process: all clusters that the tests start, and their nodes, have this one.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
torch.set_num_threads(1)
# A job in the background of a script ignores Ctrl-C, and so would the processes that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("agentverl", deadline=None, max_examples=40, derandomize=True, print_blob=True)
settings.load_profile("agentverl")
