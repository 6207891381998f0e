"""Install torch into this environment: the CPU build where the machine has no GPU."""

import shutil
import subprocess
import sys
import urllib.request


def answers(index: str) -> bool:
    """Whether the index can be reached; one that cannot must not stop the installation."""
    try:
        with urllib.request.urlopen(f"{index}/torch/", timeout=5):
            return True
    except OSError:
        return False


def main(requirement: str, cpu_index: str) -> int:
    extra = [] if shutil.which("nvidia-smi") or not answers(cpu_index) else ["--extra-index-url", cpu_index]
    return subprocess.call([sys.executable, "-m", "pip", "install", "--quiet", requirement, *extra])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
