"""How large the micro-batches of an update are: the keys that `actor.*` and `critic.*` share."""

from dataclasses import dataclass

from pydantic import Field

from agentverl.settings.section import Section


@dataclass(frozen=True, slots=True)
class MicroBatchLimit:
    """How large a micro-batch may be: by tokens or by sequences, never both."""

    max_tokens: int | None
    max_sequences: int | None


class MicroBatchSettings(Section):
    """Micro-batches of an update, cut by tokens or by sequences."""

    ppo_micro_batch_size_per_gpu: int | None = Field(None, gt=0)
    """Sequences a forward pass, where micro-batches are not cut by tokens."""
    use_dynamic_bsz: bool | None = None
    """Cut micro-batches by tokens; null means yes, unless `ppo_micro_batch_size_per_gpu` is set."""
    ppo_max_token_len_per_gpu: int = Field(16384, gt=0)
    """Tokens a forward pass, where micro-batches are cut by tokens."""

    @property
    def cuts_by_tokens(self) -> bool:
        """Whether micro-batches are cut by tokens."""
        return self.ppo_micro_batch_size_per_gpu is None if self.use_dynamic_bsz is None else self.use_dynamic_bsz

    @property
    def micro_batch_limit(self) -> MicroBatchLimit:
        """The size of a micro-batch in the update."""
        if self.cuts_by_tokens:
            return MicroBatchLimit(self.ppo_max_token_len_per_gpu, None)
        return MicroBatchLimit(None, self.ppo_micro_batch_size_per_gpu)
