"""What `agentverl doctor` finds: what of this machine and of this install works."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import psutil
import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentverl import plugins
from agentverl.errors import PluginError
from agentverl.settings import precision
from agentverl.trainer.catalogue import kinds

Verdict = Literal["ok", "absent", "advice", "broken"]
_COLOURS = {"ok": "green", "absent": "dim", "advice": "yellow", "broken": "red"}
_OPTIONAL = {
    "math-verify": "scores mathematical answers: pip install 'agentverl[math]'",
    "reasoning-gym": "more tasks: pip install 'agentverl[reasoning-gym]'",
    "gguf": "reads .gguf models: pip install 'agentverl[gguf]'",
    "wandb": "logs to Weights & Biases: pip install 'agentverl[wandb]'",
    "ray": "not used by this version",
    "vllm": "not used by this version",
    "sglang": "not used by this version",
}
_NEEDED = {
    "agent_loops": {"single_turn_agent", "tool_agent"},
    "checkpoint_engines": {"naive"},
    "engines": {"fsdp"},
    "loggers": {"console", "file"},
    "replicas": {"hf"},
    "reward_managers": {"batch", "dapo", "gdpo", "naive", "rate_limited", "remote"},
    "routers": {"least_loaded"},
    "tool_parsers": {"hermes"},
}
_LOW_MEMORY_BYTES = 2 * 1024**3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; `broken` is what the local launcher cannot do without."""

    what: str
    found: str
    verdict: Verdict = "ok"


def examine(output_folder: Path = Path("outputs")) -> list[Finding]:
    """Look at everything."""
    return [
        *_install(),
        *_processor(),
        _memory(),
        _gpu(),
        _outputs(output_folder),
        *_plugins(),
        *(_package(name, purpose) for name, purpose in _OPTIONAL.items()),
        _bubblewrap(),
        _docker(),
    ]


def print_findings(findings: list[Finding]) -> None:
    """Print them as a table."""
    table = Table(box=None, pad_edge=False)
    for column in ("what", "", "found"):
        table.add_column(column)
    for finding in findings:
        colour = _COLOURS[finding.verdict]
        table.add_row(finding.what, f"[{colour}]{finding.verdict}[/{colour}]", escape(finding.found))
    Console().print(table)


def _install() -> Iterator[Finding]:
    verdict: Verdict = "ok" if sys.version_info >= (3, 11) else "broken"
    yield Finding("python", f"{platform.python_version()} at {sys.executable}", verdict)
    for name in ("agentverl", "torch", "transformers"):
        yield _package(name, "needed", absent="broken")


def _package(name: str, purpose: str, absent: Verdict = "absent") -> Finding:
    try:
        return Finding(name, version(name))
    except PackageNotFoundError:
        return Finding(name, f"not installed; {purpose}", absent)


def _processor() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    native = precision.resolve("auto", "cpu") == "bfloat16"
    yield Finding("processor", f"{cores} cores; dtype auto is {'bfloat16' if native else 'float32'} here")
    threads, asked = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    if threads > cores:
        yield Finding("threads", f"{threads} for {cores} cores; set OMP_NUM_THREADS={cores}", "advice")
    elif threads < cores and asked is not None:
        yield Finding("threads", f"{threads} (OMP_NUM_THREADS={asked}); {cores} cores would allow {cores}", "advice")
    else:
        yield Finding("threads", f"{threads}")


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    text = f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free"
    if memory.available < _LOW_MEMORY_BYTES:
        return Finding("memory", f"{text}; the quickstart needs 2", "advice")
    return Finding("memory", text)


def _gpu() -> Finding:
    if not torch.cuda.is_available():
        return Finding("gpu", "none; training runs on the CPU", "absent")
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return Finding("gpu", f"{', '.join(names)} (one is used)")


def _outputs(folder: Path) -> Finding:
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Finding("outputs", f"{existing} cannot be written; set trainer.default_local_dir", "broken")
    return Finding("outputs", f"{folder} can be written; {shutil.disk_usage(existing).free / 2**30:.1f} GiB free")


def _plugins() -> Iterator[Finding]:
    loaded = 0
    for kind in kinds():
        for name, _ in plugins.installed(kind):
            try:
                plugins.find(kind, name)
                loaded += 1
            except PluginError as error:
                needed = name in _NEEDED.get(kind, set())
                yield Finding(f"{kind} {name}", str(error), "broken" if needed else "advice")
    yield Finding("plugins", f"{loaded} load")


def _bubblewrap() -> Finding:
    path = shutil.which("bwrap")
    if path is None:
        return Finding("bubblewrap", "not installed; the scorer `code` needs it: apt-get install bubblewrap", "absent")
    tried = subprocess.run([path, "--ro-bind", "/", "/", "true"], capture_output=True, timeout=10, check=False)
    if tried.returncode != 0:
        return Finding("bubblewrap", f"{path}, which may not make namespaces here", "absent")
    return Finding("bubblewrap", path)


def _docker() -> Finding:
    path = shutil.which("docker")
    if path is None:
        return Finding("docker", "not installed; not needed by this version", "absent")
    return Finding("docker", path)
