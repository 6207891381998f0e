"""`agentverl train`: a whole run, from its folder to the words at its end."""

from rich.console import Console

from agentverl.settings.root import Settings
from agentverl.trainer.ppo import PPOTrainer
from agentverl.trainer.summary import Summary, say_goodbye


def train(settings: Settings) -> Summary:
    """Train a policy, or go on with an unfinished run of the same configuration.

    Raises:
        BadInputError: whatever keeps the run from starting, together.
        TrainingStoppedError: the run cannot go on.
        RequeueError: SIGTERM came; everything is saved.
    """
    trainer = PPOTrainer(settings)
    summary = trainer.fit()
    quickstart = settings.trainer.experiment_name == "quickstart"
    say_goodbye(summary, trainer.run.path, quickstart=quickstart, console=Console())
    return summary
