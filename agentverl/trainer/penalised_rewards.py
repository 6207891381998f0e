"""From scores to rewards: what the KL to the reference policy takes from each token."""

from agentverl.algorithms.kl import KLController, kl_in_reward
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.settings.algorithm import AlgorithmSettings
from agentverl.trainer.joining import JoinedTrajectories


def assign_rewards(batch: DataProto, algorithm: AlgorithmSettings, controller: KLController) -> dict[str, float]:
    """Add the column `token_level_rewards`: the scores, less the KL penalty with `use_kl_in_reward`; its metrics.

    The controller learns of the KL and of how many trajectories it comes from, each counted once for each of its roles
    and however many sequences it has.

    Columns: `token_level_scores`, `response_mask`, and with the penalty `old_log_probs` and `ref_log_prob`.
    """
    if not algorithm.use_kl_in_reward:
        scores = batch.batch.ragged("token_level_scores")
        batch.batch["token_level_rewards"] = Ragged(scores.values.clone(), scores.offsets)
        return {}
    joined, coefficient = JoinedTrajectories(batch), controller.value
    rewards, divergence = kl_in_reward(
        joined.column("token_level_scores"),
        joined.column("old_log_probs"),
        joined.column("ref_log_prob"),
        joined.column("response_mask"),
        coefficient,
        algorithm.kl_penalty,
    )
    batch.batch["token_level_rewards"] = joined.split(rewards)
    controller.update(current_kl=divergence, n_steps=len(joined.units))
    return {"actor/reward_kl_penalty": divergence, "actor/reward_kl_penalty_coeff": coefficient}
