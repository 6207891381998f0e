"""The whole configuration of reinforcement learning, and of all commands that run episodes."""

from agentverl.settings.actor import ActorSettings, RefSettings
from agentverl.settings.algorithm import AlgorithmSettings
from agentverl.settings.critic import CriticSettings
from agentverl.settings.data import DataSettings
from agentverl.settings.known_names import WITH_VALUES
from agentverl.settings.micro_batches import MicroBatchLimit
from agentverl.settings.model import ModelSettings
from agentverl.settings.ray import RaySettings
from agentverl.settings.reward import RewardSettings
from agentverl.settings.rollout import RolloutSettings
from agentverl.settings.section import Section
from agentverl.settings.trainer import TrainerSettings


class ActorRolloutRefSettings(Section):
    """The policy in its three roles."""

    model: ModelSettings = ModelSettings()
    actor: ActorSettings = ActorSettings()
    rollout: RolloutSettings = RolloutSettings()
    ref: RefSettings = RefSettings()

    @property
    def old_log_prob_limit(self) -> MicroBatchLimit:
        """The size of a micro-batch when the actor computes log-probabilities of samples."""
        return self.rollout.log_prob_limit(self.actor)

    @property
    def ref_log_prob_limit(self) -> MicroBatchLimit:
        """The size of a micro-batch when the reference computes log-probabilities."""
        return self.ref.log_prob_limit(self.actor)


class Settings(Section):
    """The root; plugins never see it."""

    data: DataSettings = DataSettings()
    actor_rollout_ref: ActorRolloutRefSettings = ActorRolloutRefSettings()
    critic: CriticSettings = CriticSettings()
    algorithm: AlgorithmSettings = AlgorithmSettings()
    reward: RewardSettings = RewardSettings()
    trainer: TrainerSettings = TrainerSettings()
    ray_kwargs: RaySettings = RaySettings()

    @property
    def validates(self) -> bool:
        """Whether anything is ever validated."""
        return self.trainer.test_freq > 0 or self.trainer.val_before_train or self.trainer.val_only

    @property
    def needs_reference(self) -> bool:
        """Whether a KL term asks for the reference policy."""
        return self.actor_rollout_ref.actor.use_kl_loss or self.algorithm.use_kl_in_reward

    @property
    def needs_critic(self) -> bool:
        """Whether a critic is trained: as `critic.enable` says, else where the estimator needs values."""
        if self.critic.enable is not None:
            return self.critic.enable
        return self.algorithm.adv_estimator in WITH_VALUES
