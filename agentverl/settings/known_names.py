"""Names that are no plugins but entries of a registry; anything else is named `package.module:function`."""

ESTIMATORS = frozenset(
    {
        "gae",
        "grpo",
        "grpo_vectorized",
        "grpo_passk",
        "reinforce_plus_plus",
        "reinforce_plus_plus_baseline",
        "remax",
        "rloo",
        "rloo_vectorized",
        "opo",
        "gpg",
        "gdpo",
        "optimal_token_baseline",
        "tir_optimal_token_baseline",
        "turn_gae",
        "turn_grpo",
        "gigpo",
    }
)
"""Advantage estimators, verl's and ours, whose settings have an effect with some of them only."""

WITH_VALUES = frozenset({"gae", "turn_gae"})
"""Estimators that need a critic's values."""

WITHOUT_GROUP = frozenset({"gae", "turn_gae", "reinforce_plus_plus", "remax"})
"""Estimators that do not compare the samples of one prompt."""

POLICY_LOSSES = frozenset(
    {
        "vanilla",
        "dppo_tv",
        "dppo_kl",
        "gspo",
        "sapo",
        "gpg",
        "clip_cov",
        "kl_cov",
        "geo_mean",
        "dro",
        "cispo",
        "bypass_mode",
    }
)
"""Policy losses of verl, whose settings have an effect with some of them only."""

AVERAGED_BY_SEQUENCE = frozenset({"sapo", "geo_mean"})
"""Policy losses that are defined as a mean over sequences, whatever `loss_agg_mode` says."""

KL_PENALTIES = frozenset({"kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"})
"""Each also with `+`: the gradient of k2."""

RUNTIME_ENV = frozenset(
    {
        "conda",
        "config",
        "container",
        "env_vars",
        "excludes",
        "image_uri",
        "java_jars",
        "nsight",
        "pip",
        "py_executable",
        "py_modules",
        "rocprof_sys",
        "uv",
        "worker_process_setup_hook",
        "working_dir",
    }
)
"""Keys of Ray's runtime environment, which takes others without a word."""
