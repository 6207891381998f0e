"""`actor_rollout_ref.rollout.*` (short: `rollout.*`): how trajectories are sampled."""

from typing import Any, Literal

from pydantic import Field

from agentverl.settings.actor import LogProbSettings
from agentverl.settings.agent import AgentSettings
from agentverl.settings.engine import Precision
from agentverl.settings.multi_turn import MultiTurnSettings
from agentverl.settings.on_end import OnEndSettings
from agentverl.settings.section import Section


class SamplingSettings(Section):
    """How a token is drawn."""

    temperature: float = Field(1.0, ge=0)
    """0 takes the most likely token."""
    top_k: int = Field(-1, ge=-1)
    """-1 or 0 means all tokens."""
    top_p: float = Field(1.0, gt=0, le=1)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, gt=0)

    @property
    def bends(self) -> list[str]:
        """The keys set so that the distribution is not the policy's at this temperature."""
        bent = {
            "top_k": self.top_k > 0,
            "top_p": self.top_p < 1,
            "min_p": self.min_p > 0,
            "repetition_penalty": self.repetition_penalty != 1,
        }
        return [key for key, is_bent in bent.items() if is_bent]


class ValidationSamplingSettings(SamplingSettings):
    """How validation samples."""

    temperature: float = Field(0.0, ge=0)
    n: int = Field(1, gt=0)
    """Samples a held-out prompt."""
    do_sample: bool | None = None
    """Says again what `temperature` says: false with 0, true above 0; null leaves it to `temperature`."""


class CheckpointEngineSettings(Section):
    """How weights get from the training engine to the rollout server."""

    backend: str = "naive"
    update_weights_bucket_megabytes: int = Field(64, gt=0)
    """Of each of the two buffers of a process that weights travel in, for servers of `nnodes`."""


class RolloutSettings(SamplingSettings, LogProbSettings):
    """The rollout server, its sampling, and what happens around the episodes."""

    name: str = "hf"
    """The rollout server."""
    nnodes: int = Field(0, ge=0)
    """Machines for servers in processes of their own; 0: each training rank holds one in its process."""
    n_gpus_per_node: int | None = Field(None, gt=0)
    """Servers on each of these machines (on CPUs too); null means `trainer.n_gpus_per_node`."""
    n: int = Field(1, gt=0)
    """Samples a prompt; group-relative estimators need at least 2."""
    dtype: Precision = "auto"
    """Of the server's computation; `auto` means the actor's."""
    max_model_len: int | None = Field(None, gt=0)
    """Tokens a sequence, prompt included; null means the model's context."""
    max_num_seqs: int = Field(256, gt=0)
    """Sequences that the server decodes at a time."""
    max_num_batched_tokens: int = Field(8192, gt=0)
    """Tokens of one forward pass of the server; longer prompts are cut into chunks."""
    gpu_memory_utilization: float = Field(0.5, gt=0, le=1)
    """Share of a GPU's memory that the server may use, weights and KV caches together."""
    free_cache_engine: bool = True
    """Drop the server's KV caches and weights while the policy is trained; the next weights wake it up."""
    ignore_eos: bool = False
    """Never end a turn before its limit, for measurements."""
    engine_kwargs: dict[str, dict[str, Any]] = {}
    """A server's own settings, under its name."""
    router: str = "least_loaded"
    """How a trajectory is given to one of several servers."""
    seed: int | None = None
    """Seed of sampling; null means `trainer.seed`."""
    incomplete_groups: Literal["complete", "train", "drop"] = "complete"
    """A group with a failed sample: complete it by new ones as far as that goes, train what is there, or drop it."""
    min_group_size: int = Field(2, gt=0)
    """Samples with which an incomplete group is still trained."""
    max_excluded_fraction: float = Field(0.1, ge=0, le=1)
    """Share of failed samples, of the last 512, above which the run stops; one failure among several stops nothing."""
    val_kwargs: ValidationSamplingSettings = ValidationSamplingSettings()
    multi_turn: MultiTurnSettings = MultiTurnSettings()
    agent: AgentSettings = AgentSettings()
    on_end: OnEndSettings = OnEndSettings()
    checkpoint_engine: CheckpointEngineSettings = CheckpointEngineSettings()

    @property
    def agent_loop(self) -> str:
        """The agent loop of rows that name none."""
        return self.agent.default_agent_loop or ("tool_agent" if self.multi_turn.has_tools else "single_turn_agent")
