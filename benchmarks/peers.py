"""Virtual environments of the projects that agentverl is measured against."""

import subprocess
import sys
import sysconfig
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / ".venvs"
# verl itself, and what it imports that agentverl's environment lacks; torch and transformers are shared.
_VERL = [
    *(
        "verl==0.9.1",
        "codetiming",
        "pylatexenc",
        "torchdata",
        "pybind11",
        "wandb",
        "cachetools",
        "uvicorn",
        "starlette",
    ),
    *("orjson", "fastapi==0.136.3", "ray", "tensordict", "msgpack", "jsonschema", "jsonschema-specifications"),
    *("referencing", "rpds-py"),
]


def peer_python(name: str, module: str, packages: list[str]) -> Path:
    """The interpreter of `.venvs/<name>`, which is made where `module` cannot be imported there.

    What is installed beside agentverl (torch, transformers, datasets) is shared; `packages` come without dependencies.
    """
    python = _FOLDER / name / "bin" / "python"
    if (
        python.exists()
        and not subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode
    ):
        return python
    subprocess.run([sys.executable, "-m", "venv", _FOLDER / name], check=True)
    shared = sysconfig.get_paths()["purelib"]
    for site in (_FOLDER / name / "lib").glob("python*/site-packages"):
        (site / "shared.pth").write_text(shared + "\n")
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", *packages], check=True, stdout=sys.stderr)
    return python


def verl_python(module: str) -> Path:
    """The interpreter of an environment with verl 0.9.1, in which `module` of it can be imported."""
    return peer_python("verl", module, _VERL)
