"""All that a run needs and that can be wrong before anything starts: found at once, reported together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from transformers.utils import logging as transformers_logging

from agentverl import plugins
from agentverl.agent_loops.loading import AgentLoops
from agentverl.algorithms.registry import get_adv_estimator_fn, get_policy_loss_fn
from agentverl.data.chat_template import ChatTemplate
from agentverl.data.datasets import RowDataset, load_rows
from agentverl.data.model_config import context_length, load_config
from agentverl.data.model_folder import ModelFolder, resolve_model_path
from agentverl.data.overlong import fit_prompts
from agentverl.data.tokenizers import load_tokenizer, text_of
from agentverl.data.tool_parsers import load_tool_parser
from agentverl.environments.loading import EnvironmentSpec
from agentverl.errors import DatasetError, ModelFolderError, SettingsError
from agentverl.rewards.base import RewardContext, RewardManager
from agentverl.settings.model import ModelSettings
from agentverl.settings.paths import resolve_path
from agentverl.settings.root import Settings
from agentverl.tools.loading import load_tools
from agentverl.tools.toolset import Toolset
from agentverl.tracking.base import find_logger
from agentverl.trainer.problems import Problems
from agentverl.trainer.row_checks import RowChecks
from agentverl.workers.engine_settings import resolve_device

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Prepared:
    """The parts of a run that need no process, no device and no thread."""

    folder: ModelFolder
    tokenizer: Any
    template: ChatTemplate
    parser: Any
    toolset: Toolset
    reward: RewardManager
    train_rows: Sequence[Row]
    validation_rows: Sequence[Row]

    def decode(self, ids: list[int]) -> str:
        """Token ids as text, special tokens included."""
        return text_of(self.tokenizer, ids)


def prepare(
    settings: Settings,
    *,
    splits: Sequence[str] = ("train", "val"),
    trains: bool = False,
    problems: Problems | None = None,
) -> Prepared:
    """Find and check the model folder, template, plugins, tools and rows of a run.

    Raises:
        BadInputError: everything that is wrong, together, what `problems` holds already included.
    """
    rollout = settings.actor_rollout_ref.rollout
    problems = problems or Problems()
    find_plugins(settings, problems, trains=trains)
    folder, tokenizer, template = _model_parts(settings, problems)
    parser = problems.attempt(partial(load_tool_parser, rollout.multi_turn.format))
    loops = problems.attempt(lambda: agent_loops_of(settings))
    if loops is not None:
        problems.attempt(lambda: loops.find(rollout.agent_loop))
    found = problems.attempt(lambda: toolset_of(settings))
    toolset = found or Toolset()
    if template is not None and toolset.specs:
        problems.attempt(partial(template.check_tools, toolset.schemas))
    reward = problems.attempt(lambda: reward_manager(settings))
    rows: dict[str, Sequence[Row]] = {"train": [], "val": []}
    checks = RowChecks(settings, problems)
    for split in splits:
        fewest = settings.data.train_batch_size if trains and split == "train" else 1
        rows[split] = problems.attempt(partial(_split, settings, split, template, toolset, fewest)) or []
        problems.attempt(partial(checks.read, rows[split]))
    if loops is not None and found is not None:
        checks.agent_loops(loops, toolset)
        checks.tools(toolset)
    scores = checks.environments()
    if reward is not None:
        checks.rewards(reward, scores)
    problems.refuse()
    assert folder is not None
    assert template is not None
    assert loops is not None
    assert reward is not None
    return Prepared(folder, tokenizer, template, parser, toolset, reward, rows["train"], rows["val"])


def agent_loops_of(settings: Settings) -> AgentLoops:
    """The agent loops that rows may name.

    Raises:
        BadInputError: `agent.agent_loop_config_path` cannot be used.
    """
    return AgentLoops(_path(settings.actor_rollout_ref.rollout.agent.agent_loop_config_path))


def toolset_of(settings: Settings) -> Toolset:
    """The tools of the run.

    Raises:
        BadInputError: a file of tools cannot be used.
    """
    rollout = settings.actor_rollout_ref.rollout
    specs = load_tools(rollout.multi_turn.tool_config_file, rollout.multi_turn.function_tool_file)
    return Toolset(specs, default_timeout_seconds=rollout.agent.tool_timeout_seconds)


def find_plugins(settings: Settings, problems: Problems, *, trains: bool) -> None:
    """Import all that is found by name and made later, when servers and workers start."""
    rollout, actor = settings.actor_rollout_ref.rollout, settings.actor_rollout_ref.actor
    named = [("replicas", rollout.name), ("routers", rollout.router)]
    named += [("checkpoint_engines", rollout.checkpoint_engine.backend)]
    if trains:
        named.append(("engines", actor.strategy))
        problems.attempt(partial(get_adv_estimator_fn, settings.algorithm.adv_estimator))
        problems.attempt(partial(get_policy_loss_fn, actor.policy_loss.loss_mode))
    for kind, name in named:
        problems.attempt(partial(plugins.find, kind, name))
    for name in settings.trainer.logger:
        problems.attempt(partial(find_logger, name))
    problems.attempt(partial(check_device, settings.trainer.device, deterministic=settings.trainer.deterministic))


def check_device(device: str, *, deterministic: bool) -> None:
    """What `auto` takes on this machine, where one result is asked for to the last bit.

    Raises:
        SettingsError: there is no such device, or it is a GPU and the run has to be deterministic.
    """
    if resolve_device(device) == "cuda" and deterministic:
        raise SettingsError("trainer.deterministic=true holds on a CPU only; set trainer.device=cpu")


def template_of(model: ModelSettings, template_kwargs: Mapping[str, Any]) -> tuple[ModelFolder, Any, ChatTemplate]:
    """The model folder, its tokenizer, and the template that the run uses.

    Raises:
        ModelFolderError: one of them is missing or cannot be used.
    """
    # Bars for every small file would tear the live display of a run.
    transformers_logging.disable_progress_bar()
    folder = resolve_model_path(str(model.path))
    tokenizer = load_tokenizer(
        resolve_model_path(model.tokenizer_path).path if model.tokenizer_path else folder.path,
        custom_chat_template=model.custom_chat_template,
        trust_remote_code=model.trust_remote_code,
    )
    return folder, tokenizer, ChatTemplate(tokenizer, dict(template_kwargs), folder.eos_token_ids)


def _split(
    settings: Settings, split: str, template: ChatTemplate | None, toolset: Toolset, fewest: int
) -> Sequence[Row]:
    """The prompts of a split, none longer than allowed; errors begin with where they come from."""
    data, agent = settings.data, settings.actor_rollout_ref.rollout.agent
    files = data.train_files if split == "train" else data.val_files
    source = f"data.{split}_files" if files else f"{split} tasks of agent.environment={agent.environment}"
    try:
        rows = _rows(settings, split)
        if template is not None and rows:
            rows = fit_prompts(
                rows,
                template,
                max_prompt_length=data.max_prompt_length,
                policy=data.overlong_policy,
                tools=toolset.schemas or None,
            )
        if not rows:
            raise DatasetError("there are none")
        if len(rows) < fewest:
            raise DatasetError(
                f"{len(rows)} rows do not make a batch of data.train_batch_size={fewest}; lower it or give more"
            )
    except DatasetError as error:
        raise DatasetError(f"{source}: {error}") from error
    return rows


def _rows(settings: Settings, split: str) -> RowDataset:
    data, agent = settings.data, settings.actor_rollout_ref.rollout.agent
    training = split == "train"
    files = data.train_files if training else data.val_files
    seed = data.seed if data.seed is not None else settings.trainer.seed
    if files:
        return load_rows(
            [resolve_path(file) for file in files],
            prompt_key=data.prompt_key,
            reward_fn_key=data.reward_fn_key,
            max_samples=data.train_max_samples if training else data.val_max_samples,
            shuffle=data.shuffle if training else data.validation_shuffle,
            seed=seed,
        )
    if agent.environment is None:
        return RowDataset([])
    environment = EnvironmentSpec.find(agent.environment, agent.environment_kwargs)
    # Held-out tasks are the same in every run, so that runs with different seeds can be compared.
    size, seed = (data.train_size, seed) if training else (data.val_size, 0)
    return RowDataset(environment.rows(split, size, seed))


def reward_manager(settings: Settings) -> RewardManager:
    """The reward manager that the settings name.

    Raises:
        PluginError, SettingsError: the manager or what it scores with is not found.
    """
    manager = settings.reward.reward_manager
    own = manager.source == "importlib"
    name = f"{manager.module.path}:{manager.module.name}" if own else manager.name
    context = RewardContext(
        max_response_length=settings.data.max_response_length,
        reward_keys=tuple(settings.algorithm.get("gdpo_reward_keys", ())),
    )
    made: RewardManager = plugins.find("reward_managers", name)(settings.reward, context)
    return made


def _model_parts(settings: Settings, problems: Problems) -> tuple[Any, Any, Any]:
    model = settings.actor_rollout_ref.model
    made = problems.attempt(lambda: template_of(model, settings.data.apply_chat_template_kwargs))
    if made is None:
        return None, None, None
    problems.attempt(partial(_check_model, settings, made[0].path, made[2]))
    return made


def _check_model(settings: Settings, folder: Path, template: ChatTemplate) -> None:
    """The longest sequence fits into the model's context, and what ends a turn into its vocabulary."""
    model, data = settings.actor_rollout_ref.model, settings.data
    config = load_config(folder, model.override_config, trust_remote_code=model.trust_remote_code)
    context, longest = context_length(config), data.max_prompt_length + data.max_response_length
    asked = settings.actor_rollout_ref.rollout.max_model_len
    if context is not None and asked is not None and asked > context:
        raise SettingsError(
            f"rollout.max_model_len={asked} is above the model's context of {context} tokens (max_position_embeddings "
            f"in {folder}/config.json); set it to {context}"
        )
    if context is not None and asked is None and longest > context:
        raise SettingsError(
            f"data.max_prompt_length={data.max_prompt_length} + data.max_response_length={data.max_response_length} is "
            f"above the model's context of {context} tokens (max_position_embeddings in {folder}/config.json); lower "
            f"them, or set rollout.max_model_len={context} to end sequences there"
        )
    vocabulary = config.get_text_config(decoder=True).vocab_size
    beyond = [token for token in template.stop_token_ids if token >= vocabulary]
    if beyond:
        raise ModelFolderError(
            f"the tokenizer ends turns with token {beyond[0]}, but the model has only {vocabulary} tokens (vocab_size "
            f"in {folder}/config.json): they do not belong together"
        )


def _path(path: str | None) -> str | None:
    return None if path is None else str(resolve_path(path))
