"""A sandbox of bubblewrap: own namespaces, the machine's programs read only, no network, limits of time and memory."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path, PurePosixPath

from agentverl import blocking
from agentverl.errors import InfrastructureError
from agentverl.sandboxes.base import ExecResult, Sandbox

WORK = "/work"
"""Where the sandbox's own files are, inside of it."""
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache")
_CLEANUP_SECONDS = 5.0


class BubblewrapSandbox(Sandbox):
    """Commands see the machine's `/usr` read only, a `/tmp` and a `/work` of their own, and nothing else of it.

    Each command has new namespaces: no network, no process of the machine or of an earlier command, no capability. When
    it ends, at its deadline too, all that it started ends with it.

    Args:
        memory_bytes: of address space, for each process.
        processes: at a time; root is exempt, as the kernel has it.
        file_bytes: of one file.
        output_bytes: kept of standard output and of standard error each; the rest is read and thrown away.

    Raises:
        InfrastructureError: bubblewrap is not installed.
    """

    def __init__(
        self,
        *,
        memory_bytes: int = 512 << 20,
        processes: int = 64,
        file_bytes: int = 64 << 20,
        output_bytes: int = 1 << 20,
    ) -> None:
        if unavailable := reason_unavailable():
            raise InfrastructureError(unavailable, "sandbox")
        self.python = os.path.realpath(sys.executable)
        self._memory_bytes, self._processes = memory_bytes, processes
        self._file_bytes, self._output_bytes = file_bytes, output_bytes
        self._folder = Path(tempfile.mkdtemp(prefix="agentverl-sandbox-"))
        (self._folder / "work").mkdir()

    async def exec(self, command: str, *, timeout_seconds: float, stdin: str | None = None) -> ExecResult:
        """Run a command of `sh` to its end, or to its timeout; exit code 137 where it was killed.

        Raises:
            InfrastructureError: bubblewrap itself did not start it.
        """
        with tempfile.TemporaryFile() as status:
            process = await asyncio.create_subprocess_exec(
                *self._arguments(command, status.fileno()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                pass_fds=[status.fileno()],
            )
            stdout, stderr, timed_out = await self._played(process, stdin or "", timeout_seconds)
            status.seek(0)
            # Its words alone prove nothing: a program may say them too, to have no score rather than a bad one.
            if not timed_out and stderr.startswith("bwrap: ") and b'"exit-code"' not in status.read():
                raise InfrastructureError(f"the sandbox did not start: {stderr.strip()[:300]}", "sandbox")
        code = process.returncode or 0
        code = 128 - code if code < 0 else code
        by_memory = code != 0 and not timed_out and _tells_of_memory(stderr)
        return ExecResult(
            exit_code=137 if timed_out else code,
            stdout=stdout,
            stderr=stderr,
            timed_out=timed_out,
            killed_by_memory=by_memory,
        )

    async def _played(self, process: asyncio.subprocess.Process, stdin: str, seconds: float) -> tuple[str, str, bool]:
        """Standard output and error of a process, and whether it ran out of time; nothing of it is left."""
        assert process.stdout is not None
        assert process.stderr is not None
        readers = [asyncio.ensure_future(self._kept(stream)) for stream in (process.stdout, process.stderr)]
        feeding = asyncio.ensure_future(_feed(process, stdin.encode()))
        timed_out = False
        try:
            async with asyncio.timeout(seconds):
                await process.wait()
        except TimeoutError:
            timed_out = True
        finally:
            await asyncio.shield(_end(process))
            feeding.cancel()
        stdout, stderr = await asyncio.gather(*readers)
        return stdout, stderr, timed_out

    async def read_file(self, path: str) -> bytes:
        return await blocking.call(self._inside(path).read_bytes)

    async def write_file(self, path: str, content: bytes) -> None:
        await blocking.call(_write, self._inside(path), content)

    async def snapshot(self) -> str:
        """A folder with a copy of the files, which `restore` takes; the caller removes it."""
        return str(await blocking.call(_copied, self._folder / "work"))

    async def restore(self, snapshot: str) -> None:
        """Replace the files by those of a snapshot."""
        await blocking.call(_replace, self._folder / "work", Path(snapshot))

    async def close(self) -> None:
        await blocking.call(shutil.rmtree, self._folder, ignore_errors=True)

    def _inside(self, path: str) -> Path:
        """The file on the machine; links that a command left must not lead out of the sandbox."""
        parts = PurePosixPath(WORK, path)
        inside = self._folder / "work" / os.path.relpath(parts, WORK)
        root = (self._folder / "work").resolve()
        if not inside.resolve().is_relative_to(root):
            raise FileNotFoundError(f"{path} is outside of {WORK}")
        return inside

    def _arguments(self, command: str, status: int) -> list[str]:
        limits = f"ulimit -c 0; ulimit -v {self._memory_bytes >> 10}; ulimit -f {self._file_bytes >> 9}"
        # Hard limits, which a command cannot raise again; a limit of processes does not bind root.
        limited = f'{limits}; ulimit -u {self._processes} 2>/dev/null; exec /bin/sh -c "$0"'
        binds = [part for path in (*_SYSTEM, *_interpreter()) for part in ("--ro-bind-try", path, path)]
        fixed = "--unshare-all --die-with-parent --new-session --cap-drop ALL --clearenv --proc /proc --dev /dev"
        fixed += f" --tmpfs /tmp --chdir {WORK} --setenv HOME {WORK} --setenv PATH /usr/bin:/bin"
        fixed += f" --json-status-fd {status}"
        fixed += " --setenv LC_ALL C.UTF-8 --setenv OPENBLAS_NUM_THREADS 1 --hostname sandbox"
        if os.getuid() == 0:
            fixed += " --uid 65534 --gid 65534"
        work = ["--bind", str(self._folder / "work"), WORK]
        return ["bwrap", *binds, *work, *fixed.split(), "--", "/bin/sh", "-c", limited, command]

    async def _kept(self, stream: asyncio.StreamReader) -> str:
        kept = bytearray()
        while piece := await stream.read(1 << 16):
            kept += piece[: max(0, self._output_bytes - len(kept))]
        return kept.decode(errors="replace")


def reason_unavailable() -> str:
    """Why there can be no such sandbox here; empty where there can."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (no `bwrap` on the PATH); install it with `apt-get install bubblewrap`"
    return ""


def _interpreter() -> list[str]:
    """What the interpreter needs where it is not the system's own."""
    base = os.path.realpath(sys.base_prefix)
    return [] if base.startswith("/usr") and not base.startswith("/usr/local") else [base]


async def _feed(process: asyncio.subprocess.Process, content: bytes) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(content)
        await process.stdin.drain()
    process.stdin.close()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill what is left, and wait for it.

    bubblewrap that is killed before it has set up its namespaces can leave its child behind, which the session's
    process group still holds.
    """
    for end in (process.kill, lambda: os.killpg(process.pid, signal.SIGKILL)):
        with suppress(ProcessLookupError, PermissionError):
            end()
    with suppress(TimeoutError):
        async with asyncio.timeout(_CLEANUP_SECONDS):
            await process.wait()


def _tells_of_memory(stderr: str) -> bool:
    last = stderr.strip().rpartition("\n")[2]
    return "MemoryError" in last or "Cannot allocate memory" in stderr or "bad_alloc" in stderr


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    path.chmod(0o644)


def _copied(folder: Path) -> Path:
    copy = Path(tempfile.mkdtemp(prefix="agentverl-snapshot-")) / "work"
    shutil.copytree(folder, copy, symlinks=True)
    return copy


def _replace(folder: Path, snapshot: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(snapshot, folder, symlinks=True)
