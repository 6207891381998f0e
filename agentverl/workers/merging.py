"""Make a model folder of a checkpoint, whatever number of ranks wrote it, and look whether it is the same model."""

import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from agentverl.data.model_folder import resolve_model_path
from agentverl.engines.base import BaseEngine
from agentverl.engines.settings import EngineSettings
from agentverl.errors import RunFolderError
from agentverl.protocol.columns import Columns
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.settings.engine import FSDPSettings
from agentverl.settings.model import ModelSettings
from agentverl.workers.checkpoints import export
from agentverl.workers.engine_settings import make_engine

_SEQUENCES, _TOKENS = 4, 24
_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}
"""Largest difference of log-probabilities, in nats."""


def merge(checkpoint: Path, output: Path, model: ModelSettings, fsdp: FSDPSettings) -> float:
    """Write the model of an engine's checkpoint as a Hugging Face folder with the run's tokenizer and template.

    The folder gets its name once the logits of transformers' own model from it agree with those of the checkpoint.

    Returns:
        the largest difference of the log-probabilities of random tokens.

    Raises:
        RunFolderError: the checkpoint cannot be read, belongs to another model, or the folder is not the same model.
    """
    dtype = fsdp.model_dtype
    engine = make_engine(
        "fsdp",
        EngineSettings(
            model=resolve_model_path(str(model.path)).path,
            model_dtype=dtype,
            dtype=dtype,
            override_config=model.override_config,
            trust_remote_code=model.trust_remote_code,
        ),
    )
    engine.load_checkpoint(checkpoint, ["model"])
    unfinished = output.with_name(f".{output.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        export(engine, unfinished, model)
        difference = _difference(engine, unfinished / "huggingface", model.trust_remote_code)
        if not difference <= _TOLERANCE[dtype]:
            raise RunFolderError(
                f"the folder made of {checkpoint} is not its model: log-probabilities differ by {difference:.2g}, "
                f"expected at most {_TOLERANCE[dtype]:g}; please report this with the model's config.json"
            )
        (unfinished / "huggingface").rename(output)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return difference


@torch.no_grad()
def _difference(engine: BaseEngine, folder: Path, trust_remote_code: bool) -> float:
    """The largest difference of log-probabilities between an engine and transformers' model from a folder."""
    plain = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=trust_remote_code)
    vocabulary = plain.get_output_embeddings().weight.shape[0]
    ids = torch.randint(0, vocabulary, (_SEQUENCES, _TOKENS), generator=torch.Generator().manual_seed(0))
    log_softmax = torch.log_softmax(plain(input_ids=ids).logits[:, :-1].float(), -1)
    expected = log_softmax.gather(2, ids[:, 1:, None])[..., 0]
    prompts, responses = Ragged.from_list(list(ids[:, :1])), Ragged.from_list(list(ids[:, 1:]))
    batch = DataProto(Columns({"prompts": prompts, "responses": responses}))
    ours = engine.infer_batch(batch).batch.ragged("log_probs").to_padded()
    return float((ours - expected).abs().max())
