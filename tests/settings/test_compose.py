"""How recipe, YAML and overrides become settings."""

from pathlib import Path

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from agentverl.errors import SettingsError
from agentverl.settings.compose import compose, compose_sft, compose_words
from agentverl.settings.merge import RECIPES, recipes
from agentverl.settings.root import Settings

TINY = "model: {path: nano}\nagent: {environment: arithmetic}\nrollout: {n: 4}\n"


def written(folder: Path, text: str, name: str = "my.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_nothing_at_all_means_the_quickstart() -> None:
    settings = compose()
    assert settings.trainer.experiment_name == "quickstart"
    assert settings == compose(None, ["recipe=quickstart"])


def test_a_yaml_implies_no_recipe(tmp_path: Path) -> None:
    settings = compose(written(tmp_path, TINY))
    assert settings.trainer.experiment_name == "run"
    assert settings.data == Settings().data
    assert settings.actor_rollout_ref.rollout.multi_turn.tool_config_path is None


def test_a_yaml_goes_over_a_recipe_and_an_override_over_both(tmp_path: Path) -> None:
    path = written(tmp_path, "trainer: {seed: 5}\nrollout: {n: 4}\n")
    settings = compose(path, ["recipe=quickstart", "rollout.n=2"])
    assert settings.trainer.experiment_name == "quickstart"
    assert settings.trainer.seed == 5
    assert settings.actor_rollout_ref.rollout.n == 2


def test_a_yaml_may_build_on_a_recipe_by_its_defaults_list(tmp_path: Path) -> None:
    path = written(tmp_path, "defaults: [quickstart, _self_]\ntrainer: {seed: 5}\n")
    settings = compose(path)
    assert (settings.trainer.seed, settings.trainer.experiment_name) == (5, "quickstart")


@pytest.mark.parametrize("section", ["model", "actor", "rollout", "ref"])
def test_short_first_words_stand_under_actor_rollout_ref(section: str, tmp_path: Path) -> None:
    key = {"model": "override_config.a", "actor": "grad_clip", "rollout": "n", "ref": "log_prob_max_token_len_per_gpu"}[
        section
    ]
    kl = ["actor.use_kl_loss=true"]
    short = compose(None, [f"{section}.{key}=4000", *kl])
    assert short == compose(None, [f"actor_rollout_ref.{section}.{key}=4000", *kl])
    assert short != compose(None, kl)
    outer, _, inner = key.partition(".")
    value = f"{{{inner}: 4000}}" if inner else "4000"
    assert short == compose(written(tmp_path, f"{section}: {{{outer}: {value}}}"), ["recipe=quickstart", *kl])


def test_agent_and_multi_turn_stand_under_rollout() -> None:
    settings = compose(None, ["agent.max_retries=7", "multi_turn.max_parallel_calls=3"])
    assert settings.actor_rollout_ref.rollout.agent.max_retries == 7
    assert settings.actor_rollout_ref.rollout.multi_turn.max_parallel_calls == 3


def test_short_and_long_spellings_of_one_section_meet(tmp_path: Path) -> None:
    path = written(tmp_path, TINY + "actor_rollout_ref: {rollout: {agent: {max_retries: 9}, temperature: 0.7}}\n")
    rollout = compose(path).actor_rollout_ref.rollout
    assert (rollout.n, rollout.temperature, rollout.agent.max_retries) == (4, 0.7, 9)
    assert rollout.agent.environment == "arithmetic"


def test_a_yaml_may_hold_dotted_keys(tmp_path: Path) -> None:
    settings = compose(written(tmp_path, TINY + "trainer.seed: 3\nactor.optim.lr: 1e-4\n"))
    assert settings.trainer.seed == 3
    assert settings.actor_rollout_ref.actor.optim.lr == 1e-4


def test_interpolations_reach_defaults_and_short_spellings(tmp_path: Path) -> None:
    path = written(tmp_path, TINY + "data: {val_size: '${rollout.n}', train_size: '${data.train_batch_size}'}\n")
    settings = compose(path)
    assert settings.data.val_size == 4
    assert settings.data.train_size == Settings().data.train_batch_size


def test_an_override_may_refer_to_another_key() -> None:
    assert (
        compose(None, ["trainer.experiment_name=seed-${trainer.seed}", "trainer.seed=4"]).trainer.experiment_name
        == "seed-4"
    )


def test_verls_references_between_tool_paths_work(tmp_path: Path) -> None:
    tools = RECIPES / "tools" / "calculator.yaml"
    reference = "${actor_rollout_ref.rollout.multi_turn.tool_config_path}"
    path = written(
        tmp_path, TINY + f"data: {{tool_config_path: '{reference}'}}\nmulti_turn: {{tool_config_path: '{tools}'}}\n"
    )
    assert compose(path).actor_rollout_ref.rollout.multi_turn.tool_config_path == str(tools)


def test_what_a_defaults_list_brings_may_become_idle(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = written(tmp_path, "{}", "rows.jsonl")
    settings = compose(written(tmp_path, f"defaults: [quickstart, _self_]\ndata: {{train_files: '{rows}'}}\n"))
    assert settings.data.train_files == [str(rows)]
    assert not caplog.records


def test_a_section_with_nothing_below_it_is_empty(tmp_path: Path) -> None:
    assert compose(written(tmp_path, TINY + "data:\ntrainer:\n")) == compose(written(tmp_path, TINY, "same.yaml"))


def test_a_tilde_goes_back_to_the_default() -> None:
    assert compose(None, ["~rollout.max_num_seqs"]).actor_rollout_ref.rollout.max_num_seqs == 256
    assert compose(None, ["~actor.optim"]).actor_rollout_ref.actor.optim == Settings().actor_rollout_ref.actor.optim


@pytest.mark.parametrize("prefix", ["", "+", "++"])
def test_hydras_prefixes_are_taken(prefix: str) -> None:
    assert compose(None, [f"{prefix}trainer.seed=3"]).trainer.seed == 3


def test_a_run_folder_stands_for_its_configuration(tmp_path: Path) -> None:
    written(tmp_path, TINY + "trainer: {seed: 8}", "config.yaml")
    assert compose_words([str(tmp_path)]).trainer.seed == 8


def test_a_yaml_path_may_hold_an_equals_sign(tmp_path: Path) -> None:
    path = written(tmp_path, TINY, "lr=1 (a).yaml")
    assert compose_words([str(path)]).actor_rollout_ref.rollout.n == 4


def test_nothing_lossy_is_coerced_and_nothing_lossless_is_refused(tmp_path: Path) -> None:
    settings = compose(None, ["actor.optim.lr=1e-5", "rollout.n=4.0", "trainer.debug=yes", "trainer.logger=file"])
    assert settings.actor_rollout_ref.actor.optim.lr == 1e-5
    assert settings.actor_rollout_ref.rollout.n == 4
    assert settings.trainer.debug is True
    assert settings.trainer.logger == ["file"]
    with pytest.raises(SettingsError, match=r"got 4\.5"):
        compose(None, ["rollout.n=4.5"])


def test_hydras_global_state_is_left_alone(tmp_path: Path) -> None:
    path = written(tmp_path, "defaults: [quickstart, _self_]\n")
    compose(path)
    assert not GlobalHydra.instance().is_initialized()
    with initialize_config_dir(str(tmp_path), version_base=None):
        callers = GlobalHydra.instance().hydra
        compose(path)
        assert GlobalHydra.instance().hydra is callers
    assert not GlobalHydra.instance().is_initialized()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("defaults: [quikstart, _self_]", "quikstart"),
        ("defaults: 3", "defaults"),
        ("defaults: [quickstart, _self_]\ntrainer: {sed: 1}", "nearest: trainer.seed"),
    ],
)
def test_a_wrong_defaults_list_is_bad_input(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=message):
        compose(written(tmp_path, text))


def test_the_words_of_one_call_do_not_reach_the_next() -> None:
    compose(None, ["trainer.seed=1", "data.apply_chat_template_kwargs.enable_thinking=true"])
    assert compose().trainer.seed == 0
    assert compose().data.apply_chat_template_kwargs == {}


@pytest.mark.parametrize("recipe", recipes())
def test_every_recipe_is_short_and_says_how_to_run_it(recipe: str) -> None:
    text = (RECIPES / f"{recipe}.yaml").read_text()
    assert text.startswith("# ")
    assert "agentverl " in text.split("\n\n")[0]


def test_supervised_fine_tuning_has_a_schema_of_its_own(tmp_path: Path) -> None:
    rows = written(tmp_path, "{}", "rows.jsonl")
    settings = compose_sft(["model.path=nano", f"data.train_files={rows}", "optim.lr=1e-4"])
    assert settings.data.train_files == [str(rows)]
    assert settings.optim.lr == 1e-4
    with pytest.raises(SettingsError, match=r"rollout\.n: no such key"):
        compose_sft(["model.path=nano", f"data.train_files={rows}", "rollout.n=4"])
