"""The checks of `make gpu-check` on a CPU: the same functions, but for what only a GPU has."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch


@pytest.fixture
def gpu_check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / ".ci"))
    return importlib.import_module("gpu_check")


@pytest.mark.skipif(torch.cuda.is_available(), reason="here it would check the GPU")
def test_without_a_gpu_one_line_says_so_and_it_is_no_pass(
    gpu_check: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu_check.main() == 2
    assert capsys.readouterr().out == "gpu-check: torch sees no GPU here, so nothing was checked\n"


def test_bfloat16_steps_learn_plain_and_with_fsdp2(gpu_check: ModuleType) -> None:
    assert gpu_check.bfloat16_steps("cpu")["fsdp2_gain"] > 0


def test_a_server_that_sleeps_frees_what_it_held(gpu_check: ModuleType) -> None:
    found = gpu_check.sleep_frees_memory("cpu")
    assert found["freed"] > 0.95 * found["resident"] > 0


@pytest.mark.integration
def test_weights_arrive_in_another_process(gpu_check: ModuleType) -> None:
    assert gpu_check.weights_arrive("cpu", "shared_memory")["difference"] < 1e-5


@pytest.mark.integration
def test_a_check_that_fails_says_what_it_found(gpu_check: ModuleType) -> None:
    found = gpu_check.run_check(lambda device: gpu_check.quickstart(device, "trainer.val_before_train=maybe"), "cpu")
    assert not found["passed"]
    assert "returned non-zero exit status 2" in found["error"]
