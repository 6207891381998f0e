"""What a user may get wrong in the configuration, with the message and the exit code that answer it."""

from pathlib import Path
from typing import NamedTuple

import pytest

from agentverl.cli import run


class Case(NamedTuple):
    name: str
    words: list[str]
    message: str
    yaml: str | None = None
    command: str = "train"


R = "actor_rollout_ref.rollout"
A = "actor_rollout_ref.actor"

CASES = [
    Case("misspelt key", ["trainer.sed=1"], "trainer.sed: no such key; nearest: trainer.seed"),
    Case("misspelt short key", ["rollout.temprature=1"], f"{R}.temprature: no such key; nearest: {R}.temperature"),
    Case("key in another section", ["algorithm.clip_ratio=0.1"], f"no such key; nearest: {A}.clip_ratio"),
    Case("unknown key far from all", ["trainer.zzzzqqq=1"], "trainer.zzzzqqq: no such key; there are seed, launcher"),
    Case("unknown section", ["trainr.seed=1"], "trainr.seed: no such key; nearest: trainer.seed"),
    Case(
        "misspelt key in a YAML",
        [],
        "data.train_batchsize: no such key; nearest: data.train_batch_size",
        "data: {train_batchsize: 4}",
    ),
    Case("sub-key of a value", ["trainer.seed.x=1"], "trainer.seed: got {'x': 1}; expected a whole number"),
    Case("value for a section", ["trainer=1"], "trainer: got 1; expected a section with keys"),
    Case("text for a number", ["rollout.n=many"], f"{R}.n: got 'many'; expected a whole number"),
    Case("fraction for a whole number", ["rollout.n=1.5"], f"{R}.n: got 1.5; expected a whole number"),
    Case("true for a number", ["rollout.n=true"], f"{R}.n: got true; expected a number, not true or false"),
    Case("not a number", ["actor.optim.lr=nan"], f"{A}.optim.lr: got nan; expected a finite number"),
    Case("text for a switch", ["trainer.debug=maybe"], "trainer.debug: got 'maybe'; expected true or false"),
    Case(
        "number for text in a YAML",
        [],
        "trainer.experiment_name: got 7; expected text; quotes make it text",
        "trainer: {experiment_name: 007}",
    ),
    Case("null for a number", ["trainer.seed=null"], "trainer.seed: got null; expected a whole number"),
    Case("empty value", ["rollout.n="], f"{R}.n: got ''; expected a whole number"),
    Case("out of range", ["rollout.top_p=1.5"], f"{R}.top_p: got 1.5; expected less than or equal to 1"),
    Case("zero batch", ["data.train_batch_size=0"], "data.train_batch_size: got 0; expected greater than 0"),
    Case("unknown choice", ["trainer.resume_mode=never"], "got 'never'; expected auto, disable or resume_path"),
    Case("unknown aggregation", ["actor.loss_agg_mode=mean"], "expected token-mean, token-sum, seq-mean-token-sum"),
    Case(
        "list item", ["actor.checkpoint.save_contents=[model,weights]"], f"{A}.checkpoint.save_contents: got 'weights'"
    ),
    Case("unknown ending", ["rollout.on_end.timeout.score=0"], f"{R}.on_end.timeout.score: no such key"),
    Case(
        "unknown entry of an ending", ["rollout.on_end.deadline.weight=0"], f"{R}.on_end.deadline.weight: no such key"
    ),
    Case("list that is too short", ["actor.optim.betas=[0.9]"], f"{A}.optim.betas: got [0.9]; expected a longer list"),
    Case("empty name", ["trainer.experiment_name="], "trainer.experiment_name: got ''; expected"),
    Case("recipe inside a YAML", [], "on the command line write recipe=NAME", "recipe: quickstart"),
    Case("word without =", ["seed"], "got 'seed'; expected a .yaml file, a run's folder, key=value, or ~key"),
    Case("no key", ["=1"], "'=1' has no key before the '='"),
    Case("broken list", ["trainer.rollout_data_dir=x", "agent.environment_kwargs.a=[x=1"], "stands in quotes"),
    Case("missing YAML", ["missing.yaml"], "missing.yaml: no such file"),
    Case("two YAMLs", ["other.yaml"], "expected at most one", "{}"),
    Case("broken YAML", [], "is not YAML", "trainer: [1"),
    Case("YAML that is a list", [], "holds a list; expected keys such as", "- 1"),
    Case("YAML with a key twice", [], "duplicate key", "trainer: {seed: 1}\ntrainer: {seed: 2}"),
    Case("interpolation to nowhere", ["data.val_size=${data.nothing}"], "Interpolation key 'data.nothing' not found"),
    Case("unknown recipe", ["recipe=quikstart"], "recipe=quikstart: no such recipe; did you mean 'quickstart'?"),
    Case(
        "deleting an unknown key",
        ["~trainer.sed"],
        "~trainer.sed: neither the recipe nor the YAML sets it; nearest: trainer.seed",
    ),
    Case("deleting what is not set", ["~trainer.seed"], "it has its default already"),
    Case("no model", [], "model.path must be set", "agent: {environment: arithmetic}"),
    Case("no tasks", [], "no tasks: set data.train_files, or agent.environment", "model: {path: nano}"),
    Case(
        "missing data file", ["data.train_files=nowhere.parquet"], "data.train_files: there is no file nowhere.parquet"
    ),
    Case(
        "missing tool YAML",
        ["multi_turn.tool_config_path=t.yaml"],
        "multi_turn.tool_config_path: there is no file t.yaml",
    ),
    Case("missing reward file", ["reward.custom_reward_function.path=r.py"], "there is no file r.py"),
    Case(
        "missing plugin file",
        ["agent.environment=my.py:World"],
        "agent.environment=my.py:World: there is no file my.py",
    ),
    Case("unknown environment", ["agent.environment=aritmetic"], "no such plugin; nearest: arithmetic"),
    Case("unknown agent loop", ["agent.default_agent_loop=tools"], "agent.default_agent_loop=tools: no such plugin"),
    Case("unknown logger", ["trainer.logger=console,file"], "several are written trainer.logger=[console,file]"),
    Case("unknown tool parser", ["multi_turn.format=hermess"], "no such plugin; nearest: hermes"),
    Case("unknown estimator", ["algorithm.adv_estimator=grpoo"], "no such name; nearest: grpo"),
    Case("unknown loss", ["actor.policy_loss.loss_mode=vanila"], "no such name; nearest: vanilla"),
    Case("unknown KL", ["actor.use_kl_loss=true", "actor.kl_loss_type=k9"], "actor.kl_loss_type=k9: no such name"),
    Case(
        "estimator that needs a critic",
        ["algorithm.adv_estimator=gae", "critic.enable=false"],
        "algorithm.adv_estimator=gae needs a critic",
    ),
    Case(
        "gdpo without its keys",
        ["algorithm.adv_estimator=gdpo"],
        "needs algorithm.gdpo_reward_keys: components of the reward",
    ),
    Case(
        "gdpo with too many weights",
        ["algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[acc]", "algorithm.gdpo_reward_weights=[1,2]"],
        "algorithm.gdpo_reward_weights has 2 entries for 1 algorithm.gdpo_reward_keys",
    ),
    Case(
        "filter over groups of one",
        ["algorithm.filter_groups.enable=true", "rollout.n=1"],
        "rollout.n=1 makes groups of one, which never differ",
    ),
    Case(
        "critic with batches that do not divide",
        ["algorithm.adv_estimator=gae", "critic.ppo_mini_batch_size=5"],
        "is no multiple of critic.ppo_mini_batch_size=5",
    ),
    Case(
        "name too long for a folder",
        [f"trainer.experiment_name={'x' * 300}"],
        "trainer.experiment_name: got",
    ),
    Case("server for GPUs", ["rollout.name=vllm"], "rollout.name=vllm: no such plugin; there are hf"),
    Case(
        "breakpoints in other processes",
        ["trainer.launcher=ray", "trainer.debug=true"],
        "trainer.debug=true wants one process",
    ),
    Case(
        "ports upside down",
        ["trainer.launcher=ray", "trainer.master_port_range=[3000,2000]"],
        "the first port is above the last",
    ),
    Case(
        "a cluster that runs, and how to start it",
        ["trainer.launcher=ray", "ray_kwargs.ray_init.address=auto", "ray_kwargs.ray_init.num_cpus=4"],
        "Ray runs already, at ray_kwargs.ray_init.address",
    ),
    Case(
        "misspelt key of Ray's runtime environment",
        ["trainer.launcher=ray", "ray_kwargs.ray_init.runtime_env={env_var: {A: b}}"],
        "ray_kwargs.ray_init.runtime_env.env_var: no such key; nearest: env_vars",
    ),
    Case("servers of their own in one process", ["rollout.nnodes=1"], "serves in its own process; set it to 0"),
    Case(
        "servers that naive does not reach",
        ["rollout.nnodes=1", "trainer.launcher=ray"],
        "hands weights over within one; set shared_memory (one machine), gloo, or nccl (GPUs)",
    ),
    Case(
        "a stream to servers in the same process",
        ["rollout.checkpoint_engine.backend=gloo"],
        "leaves rollout servers in the training processes; set naive, or rollout.nnodes=1",
    ),
    Case("eight devices", ["trainer.n_gpus_per_node=8"], "trains in one process on one device; set it to 1"),
    Case("two machines", ["trainer.nnodes=2"], "trainer.nnodes=2: trainer.launcher=local"),
    Case(
        "batches that do not divide", ["actor.ppo_mini_batch_size=5"], "is no multiple of actor.ppo_mini_batch_size=5"
    ),
    Case(
        "mini-batch above the batch", ["actor.ppo_mini_batch_size=32"], "is no multiple of actor.ppo_mini_batch_size=32"
    ),
    Case("too few tasks", ["data.train_size=8"], "data.train_size=8 is below data.train_batch_size=16"),
    Case("micro-batch budget", ["actor.ppo_max_token_len_per_gpu=100"], "is below the longest sequence, 704 tokens"),
    Case(
        "log-prob budget",
        ["rollout.log_prob_max_token_len_per_gpu=9"],
        "rollout.log_prob_max_token_len_per_gpu=9 is below",
    ),
    Case("no micro-batch size", ["actor.use_dynamic_bsz=false"], "actor.ppo_micro_batch_size_per_gpu must be set"),
    Case("context below the prompt", ["rollout.max_model_len=64"], "leaves no room after data.max_prompt_length"),
    Case("turn above the response", ["multi_turn.max_tokens_per_turn=999"], "is above data.max_response_length"),
    Case("group of one", ["rollout.n=1"], "compares samples of a prompt, so one alone teaches nothing"),
    Case(
        "group that is never reached",
        ["rollout.incomplete_groups=train", "rollout.min_group_size=9"],
        "no group reaches it",
    ),
    Case("top_p in training", ["rollout.top_p=0.9"], "rollout.top_p=0.9 bends the distribution"),
    Case("top_k in training", ["rollout.top_k=20"], "rollout.top_k=20 bends the distribution"),
    Case("min_p in training", ["rollout.min_p=0.1"], "rollout.min_p=0.1 bends the distribution"),
    Case("penalty in training", ["rollout.repetition_penalty=1.1"], "bends the distribution"),
    Case("greedy training", ["rollout.temperature=0"], "leaves nothing to chance, so nothing is learnt"),
    Case(
        "do_sample against the temperature",
        ["rollout.val_kwargs.do_sample=true"],
        "contradicts rollout.val_kwargs.temperature=0",
    ),
    Case("greedy samples", ["rollout.val_kwargs.n=4"], "gives 4 equal samples"),
    Case(
        "tools without a loop that calls them",
        ["agent.default_agent_loop=single_turn_agent"],
        "single_turn_agent calls none",
    ),
    Case("resuming without a path", ["trainer.resume_mode=resume_path"], "needs trainer.resume_from_path"),
    Case(
        "resuming from nowhere", ["trainer.resume_mode=resume_path", "trainer.resume_from_path=x"], "x is no checkpoint"
    ),
    Case("path without the mode", ["trainer.resume_from_path=x"], "trainer.resume_mode is not resume_path"),
    Case("deterministic on a GPU", ["trainer.deterministic=true", "trainer.device=cuda"], "holds on a CPU only"),
    Case("weights coarser than the computation", ["actor.fsdp_config.model_dtype=bf16"], "loses every small update"),
    Case("key of another loss", ["actor.tau_pos=2"], f"{A}.tau_pos has no effect: the policy loss is not sapo"),
    Case(
        "key of another aggregation",
        ["actor.loss_scale_factor=2"],
        "actor.loss_agg_mode is not seq-mean-token-sum-norm",
    ),
    Case(
        "settings of another server", ["rollout.engine_kwargs.vllm.seed=1"], "rollout.engine_kwargs.vllm has no effect"
    ),
    Case("vision", ["data.image_key=images"], "data.image_key=images has no effect: this version reads text only"),
    Case("critic", ["critic.enable=true"], "algorithm.adv_estimator=grpo reads no values"),
    Case("LoRA", ["model.lora_rank=8"], "LoRA comes with a later version"),
    Case("deprecated micro-batch", ["actor.ppo_micro_batch_size=4"], "set actor.ppo_micro_batch_size_per_gpu"),
    Case("synchronous server", ["rollout.mode=sync"], "servers are always asynchronous"),
    Case("unknown preset", ["algorithm.rollout_correction.preset=token_is"], "got 'token_is'"),
    Case(
        "bounds in the wrong order",
        ["algorithm.rollout_correction.rollout_is=token", "algorithm.rollout_correction.rollout_is_threshold=2_0.5"],
        "rollout_is_threshold lower bound must be <= upper bound, got 2_0.5",
    ),
    Case(
        "a lower bound for k2",
        [
            "algorithm.rollout_correction.rollout_rs=token_k1,token_k2",
            "algorithm.rollout_correction.rollout_rs_threshold=0.5_2",
        ],
        "rollout_rs_threshold of token_k2 must be a single upper bound without '_', got '0.5_2'",
    ),
    Case(
        "unknown rejection",
        [
            "algorithm.rollout_correction.rollout_rs=seq_max_k1",
            "algorithm.rollout_correction.rollout_rs_threshold=2",
        ],
        "Invalid rollout_rs option: seq_max_k1. Must be one of",
    ),
    Case(
        "rejection without bounds",
        ["algorithm.rollout_correction.rollout_rs=token_k1"],
        "rollout_rs=token_k1 needs rollout_rs_threshold",
    ),
    Case(
        "two losses",
        ["algorithm.rollout_correction.bypass_mode=true", "actor.policy_loss.loss_mode=gspo"],
        "actor.policy_loss.loss_mode=gspo has no effect",
    ),
    Case(
        "bypass loss without bypass mode",
        ["actor.policy_loss.loss_mode=bypass_mode"],
        "belongs to algorithm.rollout_correction.bypass_mode=true",
    ),
    Case(
        "weights beside a ratio",
        ["algorithm.rollout_correction.preset=bypass_ppo_clip", "algorithm.rollout_correction.rollout_is=token"],
        "algorithm.rollout_correction.rollout_is=token has no effect: the ratio of loss_type=ppo_clip corrects already",
    ),
    Case(
        "normalised weights in micro-batches",
        [
            "algorithm.rollout_correction.preset=bypass_pg_is",
            "algorithm.rollout_correction.rollout_is_batch_normalize=true",
        ],
        "does not go with bypass_mode=true",
    ),
    Case("dro without its coefficient", ["actor.policy_loss.loss_mode=dro"], "needs actor.policy_loss.dro_beta"),
    Case(
        "no covariance lies between",
        ["actor.policy_loss.loss_mode=clip_cov", "actor.policy_loss.clip_cov_lb=5"],
        "actor.policy_loss.clip_cov_lb=5 is not below actor.policy_loss.clip_cov_ub=5",
    ),
    Case(
        "Megatron", ["actor.megatron.tensor_model_parallel_size=2"], "the one training engine of this version is fsdp"
    ),
    Case("evaluation without tasks", [], "no held-out tasks: set data.val_files", "model: {path: nano}", "eval"),
    Case("fine-tuning without files", ["model.path=nano"], "data.train_files must be set", None, "sft"),
    Case("fine-tuning's misspelt key", ["optim.lrr=1"], "optim.lrr: no such key; nearest: optim.lr", None, "sft"),
    Case("fine-tuning's budget", ["data.max_token_len_per_gpu=9"], "is below data.max_length=1024", None, "sft"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_is_answered_with_its_message_and_exit_code_2(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = list(case.words)
    if case.yaml is not None:
        Path("run.yaml").write_text(case.yaml)
        words.insert(0, "run.yaml")
    code = run([case.command, "--dry-run", *words])
    captured = capsys.readouterr()
    assert case.message in captured.err
    assert code == 2
    assert captured.out == ""
    assert "Traceback" not in captured.err


def test_all_problems_are_reported_together(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["train", "--dry-run", "trainer.sed=1", "rollout.n=x", "data.image_key=y"])
    message = capsys.readouterr().err
    assert code == 2
    assert message.startswith("error: 3 problems in the configuration:\n")
    for key in ("trainer.sed", "actor_rollout_ref.rollout.n", "data.image_key"):
        assert f"  - {key}" in message


def test_problems_of_the_set_up_are_reported_together(capsys: pytest.CaptureFixture[str]) -> None:
    run(["train", "--dry-run", "trainer.nnodes=2", "rollout.top_p=0.5", "actor.tau_pos=2", "rollout.name=vllm"])
    assert "4 problems" in capsys.readouterr().err
