"""How far the training policy is from the one that sampled: perplexities, KL and chi-squared."""

import torch
from torch import Tensor

from agentverl.algorithms.kl import LOG_RATIO_BOUND
from agentverl.algorithms.masked import masked_mean, masked_sum, zero_masked
from agentverl.algorithms.rollout_correction.weights import Metrics
from agentverl.errors import BadInputError


@torch.no_grad()
def compute_offpolicy_metrics(old_log_prob: Tensor, rollout_log_prob: Tensor | None, response_mask: Tensor) -> Metrics:
    """Diagnostics of two policies on the same tokens (B, T), pi_train of `old_log_prob` and pi_rollout.

    - training_ppl, rollout_ppl: exp(-mean log-probability of a row), averaged over rows; *_log_ppl before exp
    - log_ppl_diff: by how much a row's log-perplexity is higher in training; also _abs_diff, _diff_max, _diff_min;
      ppl_ratio: the mean of its exp
    - kl: mean of log pi_rollout - log pi_train; k3_kl: mean of r - log r - 1 with r = pi_train / pi_rollout
    - chi2_token: mean of r^2 over tokens, less 1; chi2_seq: mean over rows of the squared product of r, less 1; the
      log-ratio is kept within 20 in both

    Rows without a token count as rows of ratio 1. Without `rollout_log_prob` only training_ppl and training_log_ppl.

    Raises:
        BadInputError: no token is unmasked.
    """
    if not (response_mask != 0).any():
        raise BadInputError("response_mask must contain at least one valid token (1)")
    train = zero_masked(old_log_prob, response_mask)
    train_mean = masked_mean(train, response_mask, axis=-1)
    metrics = {"training_ppl": torch.exp(-train_mean).mean(), "training_log_ppl": -train_mean.mean()}
    if rollout_log_prob is not None:
        rollout = zero_masked(rollout_log_prob, response_mask)
        rollout_mean = masked_mean(rollout, response_mask, axis=-1)
        log_ratio, difference = train - rollout, rollout_mean - train_mean
        bounded = log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
        row_ratio = masked_sum(log_ratio, response_mask, axis=-1).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
        metrics |= {
            "kl": -masked_mean(log_ratio, response_mask),
            "k3_kl": masked_mean(torch.exp(log_ratio) - log_ratio - 1, response_mask),
            "rollout_ppl": torch.exp(-rollout_mean).mean(),
            "rollout_log_ppl": -rollout_mean.mean(),
            "log_ppl_diff": difference.mean(),
            "log_ppl_abs_diff": difference.abs().mean(),
            "log_ppl_diff_max": difference.max(),
            "log_ppl_diff_min": difference.min(),
            "ppl_ratio": torch.exp(difference).mean(),
            "chi2_token": masked_mean(torch.exp(bounded).square(), response_mask) - 1,
            "chi2_seq": torch.exp(2 * row_ratio).mean() - 1,
        }
    return {name: float(value) for name, value in metrics.items()}
