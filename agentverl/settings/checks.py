"""What can be checked before anything starts, with nothing but the settings; all that is wrong comes back at once."""

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from agentverl import plugins
from agentverl.settings.known_names import ESTIMATORS, KL_PENALTIES, POLICY_LOSSES, RUNTIME_ENV
from agentverl.settings.paths import resolve_path
from agentverl.settings.root import Settings
from agentverl.settings.sft import SFTSettings
from agentverl.settings.training_checks import check_training

Command = Literal["train", "rollout", "eval", "rescore"]


def check(settings: Settings, command: Command) -> list[str]:
    """The problems that a command has with its settings, one line each."""
    found = [*_names(settings), *_files(settings), *_placement(settings), *_lengths(settings)]
    if command != "rescore":
        found += [*_tasks(settings, command), *_tools(settings), *_validation_sampling(settings)]
    if command == "train":
        trainer = settings.trainer
        found += [*check_training(settings), *_resume(trainer.resume_mode, trainer.resume_from_path)]
    return found


def check_sft(settings: SFTSettings) -> list[str]:
    """The problems of fine-tuning's settings, one line each."""
    data, trainer = settings.data, settings.trainer
    found = list(_one_device(trainer.launcher, trainer.nnodes, trainer.n_gpus_per_node))
    if trainer.launcher == "ray":
        found.append("trainer.launcher=ray: fine-tuning runs in one process; set trainer.launcher=local")
    found += _deterministic(trainer.deterministic, trainer.device)
    if settings.model.path is None:
        found.append(_MODEL_PATH)
    if not data.train_files:
        found.append("data.train_files must be set: files with a column of conversations")
    found += _missing("data.train_files", data.train_files) + _missing("data.val_files", data.val_files)
    if data.use_dynamic_bsz and data.max_token_len_per_gpu < data.max_length:
        found.append(
            f"data.max_token_len_per_gpu={data.max_token_len_per_gpu} is below data.max_length={data.max_length}: "
            "one conversation may not fit; raise the first or lower the second"
        )
    found += [problem for name in trainer.logger for problem in _plugin("trainer.logger", "loggers", name)]
    found += _resume(trainer.resume_mode, trainer.resume_from_path)
    return found


_MODEL_PATH = "model.path must be set: a Hugging Face folder or hub id, a .gguf file, or nano"


def _names(s: Settings) -> Iterator[str]:
    rollout = s.actor_rollout_ref.rollout
    yield from _plugin("rollout.name", "replicas", rollout.name)
    yield from _plugin("rollout.router", "routers", rollout.router)
    yield from _plugin("rollout.checkpoint_engine.backend", "checkpoint_engines", rollout.checkpoint_engine.backend)
    yield from _plugin("rollout.multi_turn.format", "tool_parsers", rollout.multi_turn.format)
    yield from _plugin("actor.strategy", "engines", s.actor_rollout_ref.actor.strategy)
    yield from _plugin("critic.strategy", "engines", s.critic.strategy)
    for name in s.trainer.logger:
        yield from _plugin("trainer.logger", "loggers", name)
    if rollout.agent.agent_loop_config_path is None:
        yield from _plugin("agent.default_agent_loop", "agent_loops", rollout.agent_loop)
    if rollout.agent.environment is not None:
        yield from _plugin("agent.environment", "environments", rollout.agent.environment)
    if s.reward.reward_manager.source == "register":
        yield from _plugin("reward.reward_manager.name", "reward_managers", s.reward.reward_manager.name)
    for component in s.reward.components:
        yield from _plugin(f"reward.components: {component.name}: kind", "reward_components", component.kind)
    for server in rollout.engine_kwargs:
        if server != rollout.name:
            yield f"rollout.engine_kwargs.{server} has no effect: rollout.name is {rollout.name}"
    yield from _registered("algorithm.adv_estimator", s.algorithm.adv_estimator, ESTIMATORS)
    actor = s.actor_rollout_ref.actor
    yield from _registered("actor.policy_loss.loss_mode", actor.policy_loss.loss_mode, POLICY_LOSSES)
    yield from _registered("algorithm.kl_penalty", s.algorithm.kl_penalty.removesuffix("+"), KL_PENALTIES)
    yield from _registered("actor.kl_loss_type", actor.kl_loss_type.removesuffix("+"), KL_PENALTIES)


def _plugin(key: str, kind: str, name: str) -> Iterator[str]:
    known = [known for known, _ in plugins.installed(kind)]
    file, colon, _ = name.rpartition(":")
    if file.endswith(".py") and not Path(file).expanduser().is_file():
        yield f"{key}={name}: there is no file {file}"
    elif name not in known and not colon and "." not in name:
        several = f"; several are written {key}=[{name}]" if "," in name else ""
        yield f"{key}={name}: no such plugin{_near(name, known)}{several}; package.module:Name and file.py:Name work"


def _registered(key: str, name: str, known: frozenset[str]) -> Iterator[str]:
    if name not in known and ":" not in name:
        yield f"{key}={name}: no such name{_near(name, sorted(known))}; package.module:function works too"


def _near(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; nearest: {close[0]}" if close else f"; there are {', '.join(known) or 'none'}"


def _files(s: Settings) -> Iterator[str]:
    rollout = s.actor_rollout_ref.rollout
    yield from _missing("data.train_files", s.data.train_files)
    yield from _missing("data.val_files", s.data.val_files)
    named = {
        "multi_turn.tool_config_path": rollout.multi_turn.tool_config_path,
        "multi_turn.function_tool_path": rollout.multi_turn.function_tool_path,
        "agent.agent_loop_config_path": rollout.agent.agent_loop_config_path,
    }
    for key, path in named.items():
        yield from _missing(key, [path] if path else [])
    function = s.reward.custom_reward_function.path
    if function and (function.endswith(".py") or "/" in function):
        yield from _missing("reward.custom_reward_function.path", [function])


def _missing(key: str, paths: list[str]) -> list[str]:
    return [f"{key}: there is no file {path}" for path in paths if not resolve_path(path).is_file()]


def _placement(s: Settings) -> Iterator[str]:
    yield from _one_device(s.trainer.launcher, s.trainer.nnodes, s.trainer.n_gpus_per_node)
    yield from _processes(s)
    yield from _servers(s)
    roles = s.actor_rollout_ref
    for key, fsdp in (("actor", roles.actor.fsdp_config), ("ref", roles.ref.fsdp_config)):
        if fsdp.model_dtype == "bfloat16" and fsdp.dtype == "float32":
            yield f"{key}.fsdp_config.model_dtype=bfloat16 with dtype=float32 loses every small update; use float32"
    yield from _deterministic(s.trainer.deterministic, s.trainer.device)


def _deterministic(wanted: bool, device: str) -> Iterator[str]:
    if wanted and device == "cuda":
        yield "trainer.deterministic=true holds on a CPU only; set trainer.device=cpu"


def _one_device(launcher: str, nnodes: int, n_gpus_per_node: int) -> Iterator[str]:
    for key, count in (("nnodes", nnodes), ("n_gpus_per_node", n_gpus_per_node)):
        if count > 1 and launcher == "local":
            yield (
                f"trainer.{key}={count}: trainer.launcher=local trains in one process on one device; set it to 1, or "
                "trainer.launcher=ray"
            )


def _servers(s: Settings) -> Iterator[str]:
    rollout = s.actor_rollout_ref.rollout
    backend = rollout.checkpoint_engine.backend
    if rollout.nnodes and s.trainer.launcher == "local":
        yield f"rollout.nnodes={rollout.nnodes}: trainer.launcher=local serves in its own process; set it to 0"
    elif rollout.nnodes and backend == "naive":
        yield (
            f"rollout.nnodes={rollout.nnodes} puts rollout servers into processes of their own, and "
            "rollout.checkpoint_engine.backend=naive hands weights over within one; set shared_memory (one machine), "
            "gloo, or nccl (GPUs)"
        )
    elif not rollout.nnodes and backend in ("shared_memory", "gloo", "nccl"):
        yield (
            f"rollout.checkpoint_engine.backend={backend} brings weights to other processes, and rollout.nnodes=0 "
            "leaves rollout servers in the training processes; set naive, or rollout.nnodes=1"
        )


def _processes(s: Settings) -> Iterator[str]:
    if s.trainer.launcher == "ray" and s.trainer.debug:
        yield "trainer.debug=true wants one process, in which breakpoints hold; set trainer.launcher=local"
    ports = s.trainer.master_port_range
    if ports is not None and ports[0] > ports[1]:
        yield f"trainer.master_port_range={list(ports)}: the first port is above the last"
    for key in sorted(s.ray_kwargs.ray_init.runtime_env.keys() - RUNTIME_ENV):
        yield f"ray_kwargs.ray_init.runtime_env.{key}: no such key{_near(key, sorted(RUNTIME_ENV))}"


def _lengths(s: Settings) -> Iterator[str]:
    rollout, data = s.actor_rollout_ref.rollout, s.data
    if rollout.max_model_len is not None and rollout.max_model_len <= data.max_prompt_length:
        yield (
            f"rollout.max_model_len={rollout.max_model_len} leaves no room after data.max_prompt_length="
            f"{data.max_prompt_length}; raise the first or lower the second"
        )
    per_turn = rollout.multi_turn.max_tokens_per_turn
    if per_turn is not None and per_turn > data.max_response_length:
        yield (
            f"multi_turn.max_tokens_per_turn={per_turn} is above data.max_response_length={data.max_response_length}, "
            "which ends the turn first; lower the first or raise the second"
        )


def _tasks(s: Settings, command: Command) -> Iterator[str]:
    if s.actor_rollout_ref.model.path is None:
        yield _MODEL_PATH
    has_environment = s.actor_rollout_ref.rollout.agent.environment is not None
    if command != "eval" and not s.trainer.val_only and not s.data.train_files and not has_environment:
        yield "no tasks: set data.train_files, or agent.environment to one that makes tasks"
    validates = command == "eval" or s.trainer.val_only or s.trainer.test_freq > 0
    if validates and not s.data.val_files and not has_environment:
        yield "no held-out tasks: set data.val_files, or agent.environment to one that makes tasks"


def _tools(s: Settings) -> Iterator[str]:
    rollout = s.actor_rollout_ref.rollout
    # Rows of a file may name another loop each; that is seen when they are read.
    if rollout.agent_loop == "single_turn_agent" and rollout.multi_turn.has_tools and not s.data.train_files:
        yield (
            "multi_turn.tool_config_path names tools, but agent.default_agent_loop=single_turn_agent calls none; "
            "set agent.default_agent_loop=tool_agent, or no tools"
        )


def _validation_sampling(s: Settings) -> Iterator[str]:
    sampling = s.actor_rollout_ref.rollout.val_kwargs
    greedy = sampling.temperature == 0
    if sampling.do_sample is not None and sampling.do_sample == greedy:
        wanted = "above 0" if sampling.do_sample else "0"
        yield (
            f"rollout.val_kwargs.do_sample={str(sampling.do_sample).lower()} contradicts "
            f"rollout.val_kwargs.temperature={sampling.temperature:g}; set that to {wanted}, or drop do_sample"
        )
    if greedy and sampling.n > 1:
        yield (
            f"rollout.val_kwargs.n={sampling.n} at rollout.val_kwargs.temperature=0 gives {sampling.n} equal samples; "
            "set n=1 or a temperature above 0"
        )


def _resume(mode: str, path: str | None) -> list[str]:
    if mode != "resume_path":
        return []
    example = "outputs/run/checkpoints/global_step_10"
    if path is None:
        return [f"trainer.resume_mode=resume_path needs trainer.resume_from_path, such as {example}"]
    folder = resolve_path(path)
    if not folder.is_dir() or not folder.name.startswith("global_step_"):
        return [f"trainer.resume_from_path={path} is no checkpoint; expected a folder such as {example}"]
    return []
