"""Load a model for packed passes, over ranks from the one copy that rank 0 reads and looks at."""

import torch

from agentverl.engines.fsdp.loading import load_model
from agentverl.engines.fsdp.packed_model import PackedModel
from agentverl.engines.fsdp.ranks import Ranks
from agentverl.engines.fsdp.value_head import put_value_head
from agentverl.engines.settings import EngineSettings
from agentverl.errors import AgentverlError


def load_packed_model(settings: EngineSettings, ranks: Ranks | None) -> PackedModel:
    """The model that the settings name: on its device, or of many ranks in the memory of rank 0 alone.

    Raises:
        ModelFolderError: the folder cannot be loaded.
        BadInputError: an architecture that cannot be packed.
    """
    if ranks is None:
        return _loaded(settings, settings.device)
    if ranks.rank == 0:
        return _loaded_for_all(settings, ranks)
    found: bool | AgentverlError = ranks.from_first(None)
    if isinstance(found, AgentverlError):
        raise found
    model = load_model(settings, "meta")
    if settings.head == "value":
        with torch.device("meta"):
            put_value_head(model)
    return PackedModel(model, has_plain_head=found)


def _loaded(settings: EngineSettings, device: str) -> PackedModel:
    model = load_model(settings, device)
    packed_model = PackedModel(model)
    if settings.head == "value":
        # The first look was at logits, which tell whether packed sequences see each other; values do not yet.
        put_value_head(model)
        packed_model = PackedModel(model)
    return packed_model


def _loaded_for_all(settings: EngineSettings, ranks: Ranks) -> PackedModel:
    try:
        packed_model = _loaded(settings, "cpu")
    except AgentverlError as error:
        ranks.from_first(error)
        raise
    ranks.from_first(packed_model.has_plain_head)
    return packed_model
