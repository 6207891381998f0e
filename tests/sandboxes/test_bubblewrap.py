"""What runs in a sandbox sees nothing of the machine, ends at its deadline and takes its children along."""

import asyncio
import os
import shutil
import time
from pathlib import Path

import psutil
import pytest

from agentverl.errors import InfrastructureError
from agentverl.sandboxes.bubblewrap import BubblewrapSandbox


async def test_a_command_gives_its_output_and_exit_code(sandbox: BubblewrapSandbox) -> None:
    result = await sandbox.exec("cat; echo bad >&2; exit 3", timeout_seconds=10, stdin="hello")
    assert (result.exit_code, result.stdout, result.stderr) == (3, "hello", "bad\n")
    assert not result.timed_out
    assert not result.killed_by_memory


async def test_a_program_that_speaks_like_bubblewrap_is_no_failure_of_the_sandbox(sandbox: BubblewrapSandbox) -> None:
    result = await sandbox.exec("echo 'bwrap: no space' >&2; exit 1", timeout_seconds=10)
    assert (result.exit_code, result.stderr) == (1, "bwrap: no space\n")
    late = await sandbox.exec("echo 'bwrap: no space' >&2; sleep 20", timeout_seconds=1)
    assert late.timed_out
    assert (await sandbox.exec("ls -l /proc/self/fd", timeout_seconds=10)).stdout.count("->") == 4  # ls reads one


async def test_a_sandbox_that_does_not_start_is_no_answer_of_the_program(sandbox: BubblewrapSandbox) -> None:
    shutil.rmtree(sandbox._folder)
    with pytest.raises(InfrastructureError, match=r"did not start: bwrap: .*work"):
        await sandbox.exec("true", timeout_seconds=10)


async def test_it_sees_no_file_process_name_or_variable_of_the_machine(
    sandbox: BubblewrapSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "key")
    result = await sandbox.exec("env; ls /home /root /etc/passwd; hostname; ls -d /proc/[0-9]*", timeout_seconds=10)
    assert "SECRET" not in result.stdout
    assert "/etc/passwd" not in result.stdout
    assert str(os.getcwd()) not in result.stdout
    assert "sandbox" in result.stdout
    assert len([line for line in result.stdout.split() if line.startswith("/proc/")]) < 6


async def test_it_writes_only_into_its_own_folders(sandbox: BubblewrapSandbox) -> None:
    result = await sandbox.exec("touch /usr/x; touch /bin/x; echo 1 > /work/a; echo 2 > /tmp/b", timeout_seconds=10)
    assert result.stderr.count("Read-only file system") == 2
    assert await sandbox.read_file("a") == b"1\n"
    again = await sandbox.exec("cat /work/a /tmp/b", timeout_seconds=10)
    assert again.stdout == "1\n"


async def test_there_is_no_network(sandbox: BubblewrapSandbox) -> None:
    with_server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    async with with_server:
        port = with_server.sockets[0].getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)"
        result = await sandbox.exec(f'{sandbox.python} -c "{code}"', timeout_seconds=20)
    assert result.exit_code != 0
    assert "refused" in result.stderr
    assert (await sandbox.exec("ls /sys/class/net 2>&1; cat /proc/net/dev", timeout_seconds=10)).stdout.count(
        "eth"
    ) == 0


async def test_a_deadline_ends_it_and_all_that_it_started(sandbox: BubblewrapSandbox) -> None:
    marker = f"{time.time_ns() % 10**9 + 10**9}"
    started = time.monotonic()
    result = await sandbox.exec(f"setsid sleep {marker} & nohup sleep {marker} & sleep {marker}", timeout_seconds=0.5)
    assert result.timed_out
    assert result.exit_code == 137
    assert time.monotonic() - started < 8
    left = [process for process in psutil.process_iter(["cmdline"]) if marker in (process.info["cmdline"] or [])]
    assert left == []


async def test_a_cancelled_command_ends_too(sandbox: BubblewrapSandbox) -> None:
    marker = f"{time.time_ns() % 10**9 + 2 * 10**9}"
    task = asyncio.create_task(sandbox.exec(f"sleep {marker}", timeout_seconds=60))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    left = [process for process in psutil.process_iter(["cmdline"]) if marker in (process.info["cmdline"] or [])]
    assert left == []


async def test_memory_files_and_output_are_bounded(sandbox: BubblewrapSandbox) -> None:
    hungry = await sandbox.exec(f"{sandbox.python} -c 'bytearray(1 << 30)'", timeout_seconds=20)
    assert hungry.killed_by_memory
    assert not hungry.timed_out
    await sandbox.exec("head -c 5000000 /dev/zero > big", timeout_seconds=10)
    assert len(await sandbox.read_file("big")) <= 1 << 20
    loud = await sandbox.exec("yes | head -c 3000000", timeout_seconds=20)
    assert len(loud.stdout) == 1000
    unlimited = await sandbox.exec("ulimit -v unlimited", timeout_seconds=10)
    assert unlimited.exit_code != 0


async def test_files_go_in_and_out_but_never_beyond(sandbox: BubblewrapSandbox, tmp_path: Path) -> None:
    await sandbox.write_file("a/b.txt", b"x")
    assert (await sandbox.exec("cat a/b.txt", timeout_seconds=10)).stdout == "x"
    assert await sandbox.read_file("/work/a/b.txt") == b"x"
    (tmp_path / "secret").write_text("s")
    await sandbox.exec(f"ln -s {tmp_path} out; ln -s {tmp_path}/secret file", timeout_seconds=10)
    for path in ("../../etc/hostname", "/etc/hostname", "out/secret", "file", "nowhere"):
        with pytest.raises(FileNotFoundError):
            await sandbox.read_file(path)
    with pytest.raises(FileNotFoundError):
        await sandbox.write_file("out/new", b"x")


async def test_a_snapshot_brings_files_back(sandbox: BubblewrapSandbox) -> None:
    await sandbox.write_file("a", b"1")
    snapshot = await sandbox.snapshot()
    await sandbox.exec("rm a; touch b", timeout_seconds=10)
    await sandbox.restore(snapshot)
    assert await sandbox.read_file("a") == b"1"
    assert not (await sandbox.exec("ls b", timeout_seconds=10)).stdout


async def test_closing_removes_its_folder(sandbox: BubblewrapSandbox) -> None:
    folder = sandbox._folder
    await sandbox.close()
    await sandbox.close()
    assert not folder.exists()


def test_without_bubblewrap_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InfrastructureError, match="apt-get install bubblewrap"):
        BubblewrapSandbox()
