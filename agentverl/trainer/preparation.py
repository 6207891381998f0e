"""All that a run needs and that can be wrong before anything starts: found at once, reported together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from transformers.utils import logging as transformers_logging

from agentverl import plugins
from agentverl.agent_loops.loading import AgentLoops
from agentverl.data.chat_template import ChatTemplate
from agentverl.data.datasets import RowDataset, load_rows
from agentverl.data.model_folder import ModelFolder, resolve_model_path
from agentverl.data.overlong import fit_prompts
from agentverl.data.tokenizers import load_tokenizer
from agentverl.data.tool_parsers import load_tool_parser
from agentverl.environments.loading import EnvironmentSpec
from agentverl.errors import BadInputError, SettingsError
from agentverl.rewards.base import RewardManager
from agentverl.settings.model import ModelSettings
from agentverl.settings.paths import resolve_path
from agentverl.settings.reward import RewardSettings
from agentverl.settings.root import Settings
from agentverl.tools.loading import load_tools
from agentverl.tools.toolset import Toolset

_Made = TypeVar("_Made")
Row = dict[str, Any]


class Problems:
    """Collects what is wrong, so that a user mends a configuration once, not key by key."""

    def __init__(self) -> None:
        self._errors: list[BadInputError] = []

    def attempt(self, make: Callable[[], _Made]) -> _Made | None:
        """What `make` returns; None, and a problem more, where it raises a BadInputError."""
        try:
            return make()
        except BadInputError as error:
            self._errors.append(error)
            return None

    def refuse(self) -> None:
        """Raise what was collected: one error as it is, several as one that lists them."""
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            lines = "\n".join(f"  - {error}" for error in self._errors)
            raise SettingsError(f"{len(self._errors)} things keep the run from starting:\n{lines}")


@dataclass(frozen=True, slots=True)
class Prepared:
    """The parts of a run that need no process, no device and no thread."""

    folder: ModelFolder
    tokenizer: Any
    template: ChatTemplate
    parser: Any
    agent_loops: AgentLoops
    toolset: Toolset
    reward: RewardManager
    train_rows: Sequence[Row]
    validation_rows: Sequence[Row]

    def decode(self, ids: list[int]) -> str:
        """Token ids as text, special tokens included."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False)
        return text


def prepare(settings: Settings, *, splits: tuple[str, ...] = ("train", "val")) -> Prepared:
    """Find and check the model folder, template, plugins, tools and rows of a run.

    Raises:
        BadInputError: everything that is wrong, together.
    """
    rollout = settings.actor_rollout_ref.rollout
    problems = Problems()
    folder, tokenizer, template = _model_parts(settings, problems)
    parser = problems.attempt(partial(load_tool_parser, rollout.multi_turn.format))
    loops = problems.attempt(lambda: AgentLoops(_path(rollout.agent.agent_loop_config_path)))
    if loops is not None:
        problems.attempt(lambda: loops.find(rollout.agent_loop))
    specs = problems.attempt(
        lambda: load_tools(rollout.multi_turn.tool_config_file, rollout.multi_turn.function_tool_file)
    )
    toolset = Toolset(specs or [], default_timeout_seconds=rollout.agent.tool_timeout_seconds)
    if template is not None and toolset.specs:
        problems.attempt(partial(template.check_tools, toolset.schemas))
    rows: dict[str, Sequence[Row]] = {"train": [], "val": []}
    if template is not None:
        for split in splits:
            rows[split] = problems.attempt(partial(rows_of, settings, split, template, toolset)) or []
    reward = problems.attempt(lambda: reward_manager(settings.reward))
    if reward is not None and loops is not None:
        problems.attempt(lambda: _check_rows(settings, rows, loops, reward))
    problems.refuse()
    assert folder is not None
    assert template is not None
    assert loops is not None
    assert reward is not None
    return Prepared(folder, tokenizer, template, parser, loops, toolset, reward, rows["train"], rows["val"])


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


def rows_of(settings: Settings, split: str, template: ChatTemplate, toolset: Toolset) -> Sequence[Row]:
    """The prompts of a split, from its files or from the environment's tasks, none longer than allowed.

    Raises:
        DatasetError, SettingsError: files, columns or prompts that cannot work.
    """
    data, agent = settings.data, settings.actor_rollout_ref.rollout.agent
    training = split == "train"
    files = data.train_files if training else data.val_files
    seed = data.seed if data.seed is not None else settings.trainer.seed
    if files:
        rows = load_rows(
            [resolve_path(file) for file in files],
            prompt_key=data.prompt_key,
            reward_fn_key=data.reward_fn_key,
            max_samples=data.train_max_samples if training else data.val_max_samples,
            shuffle=data.shuffle if training else data.validation_shuffle,
            seed=seed,
        )
    elif agent.environment is not None:
        environment = EnvironmentSpec.find(agent.environment, agent.environment_kwargs)
        # Held-out tasks are the same in every run, so that runs with different seeds can be compared.
        rows = RowDataset(
            environment.rows(split, data.train_size, seed) if training else environment.rows(split, data.val_size, 0)
        )
    else:
        return []
    return fit_prompts(
        rows,
        template,
        max_prompt_length=data.max_prompt_length,
        policy=data.overlong_policy,
        tools=toolset.schemas or None,
    )


def reward_manager(reward: RewardSettings) -> RewardManager:
    """The reward manager that the settings name.

    Raises:
        PluginError, SettingsError: the manager or its reward function is not found.
    """
    manager = reward.reward_manager
    own = manager.source == "importlib"
    name = f"{manager.module.path}:{manager.module.name}" if own else manager.name
    made: RewardManager = plugins.find("reward_managers", name)(
        custom_reward_function=reward.custom_reward_function.model_dump(),
        timeout_seconds=reward.timeout_seconds,
        num_workers=reward.num_workers,
        reward_kwargs=reward.reward_kwargs,
    )
    return made


def _model_parts(settings: Settings, problems: Problems) -> tuple[Any, Any, Any]:
    made = problems.attempt(
        lambda: template_of(settings.actor_rollout_ref.model, settings.data.apply_chat_template_kwargs)
    )
    return made or (None, None, None)


def _check_rows(
    settings: Settings, rows: Mapping[str, Sequence[Row]], loops: AgentLoops, reward: RewardManager
) -> None:
    """Find every agent loop, environment and scorer that a row names."""
    every = [*rows["train"], *rows["val"]]
    for name in {row["agent_name"] for row in every if row.get("agent_name")}:
        loops.find(name)
    named = {row["environment"] for row in every if row.get("environment")}
    agent = settings.actor_rollout_ref.rollout.agent
    scores_itself = {
        # The configuration's settings are those of its own environment; a row's other one has only defaults.
        name: EnvironmentSpec.find(
            name, agent.environment_kwargs if name == agent.environment else None
        ).environment_class.scores()
        for name in named - {None}
    }
    if settings.reward.custom_reward_function.path is None and hasattr(reward, "check"):
        sources = {row.get("data_source", "") for row in every if not scores_itself.get(row.get("environment"), False)}
        if agent.environment is None or settings.reward.score_from == "function":
            reward.check(sources)


def _path(path: str | None) -> str | None:
    return None if path is None else str(resolve_path(path))
