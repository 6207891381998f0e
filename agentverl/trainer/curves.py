"""The picture of a run, drawn where there is something to draw; a run that trained well does not fail for it."""

import logging
from pathlib import Path

from agentverl.errors import RunFolderError
from agentverl.tracking.plots import plot_curves

logger = logging.getLogger(__name__)


def draw_curves(run: Path) -> None:
    """Draw `curves.png`; a run without metrics on disk, or a full disk, is warned about."""
    try:
        plot_curves(run)
    except RunFolderError as error:
        logger.warning("no picture of the curves: %s", error)
