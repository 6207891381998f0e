"""`actor_rollout_ref.model.*` (short: `model.*`): the language model that is trained."""

from typing import Any

from agentverl.settings.section import Name, Section


class ModelSettings(Section):
    """The policy's model folder, tokenizer and chat template."""

    path: Name | None = None
    """A Hugging Face folder or hub id, a `.gguf` file, or `nano`, the small model that is shipped. Must be set."""
    tokenizer_path: str | None = None
    """Another folder to take the tokenizer from."""
    trust_remote_code: bool = False
    custom_chat_template: str | None = None
    """A Jinja chat template, or the path of a file that holds one; replaces the model folder's."""
    override_config: dict[str, Any] = {}
    """Replaces entries of the model's `config.json`."""
    enable_gradient_checkpointing: bool = True
    """Recompute activations in the backward pass: less memory, a third more time."""
