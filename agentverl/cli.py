"""The `agentverl` command: each subcommand reads its settings and calls one function of the trainer."""

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentverl import freed_memory
from agentverl.errors import AgentverlError, BadInputError

if TYPE_CHECKING:
    from agentverl.settings.checks import Command
    from agentverl.settings.root import Settings
    from agentverl.settings.sft import SFTSettings
    from agentverl.tracking.show import Pick

INTERRUPTED = 130
_WORDS = click.argument("words", nargs=-1, metavar="[FILE.yaml] [KEY=VALUE]...")
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Print the effective configuration and end.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.version_option(package_name="agentverl")
def cli() -> None:
    """Multi-turn reinforcement learning for language models that act.

    \b
    agentverl train                          a nano model learns to call a calculator
    agentverl train my.yaml rollout.n=16     your own run, one key changed
    agentverl train my.yaml --dry-run        what it would do
    agentverl show outputs/quickstart        what the model did
    """


@cli.command()
@_WORDS
@_DRY_RUN
def train(words: tuple[str, ...], dry_run: bool) -> None:
    """Train a policy by reinforcement learning.

    Without a YAML and without recipe=NAME it runs recipe=quickstart. Started again, an unfinished run goes on.

    \b
    agentverl train
    agentverl train trainer.seed=1 trainer.total_training_steps=20
    agentverl train my.yaml model.path=Qwen/Qwen2.5-0.5B-Instruct
    agentverl train my.yaml ~actor.optim.lr       (~KEY: back to the default)
    """
    settings = _settings(words, "train")
    if dry_run:
        return _print_yaml(settings)
    from agentverl.trainer.train import train as run

    run(settings)


@cli.command()
@_WORDS
@_DRY_RUN
def sft(words: tuple[str, ...], dry_run: bool) -> None:
    """Fine-tune a model on conversations.

    \b
    agentverl sft model.path=nano data.train_files=conversations.parquet
    agentverl sft my_sft.yaml optim.lr=1e-4
    """
    from agentverl.settings.compose import compose_sft

    settings = compose_sft(words)
    _note_debug(settings.trainer.debug)
    if dry_run:
        return _print_yaml(settings)
    from agentverl.trainer.sft import run_sft

    run_sft(settings)


@cli.command()
@_WORDS
@_DRY_RUN
def rollout(words: tuple[str, ...], dry_run: bool) -> None:
    """Sample trajectories into a journal, without training.

    \b
    agentverl rollout data.train_size=32 rollout.n=4
    agentverl rollout my.yaml model.path=outputs/run/checkpoints/global_step_40/actor/huggingface
    """
    settings = _settings(words, "rollout")
    if dry_run:
        return _print_yaml(settings)
    from agentverl.trainer.rollout_only import rollout as run

    run(settings)


@cli.command()
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("words", nargs=-1, metavar="[KEY=VALUE]...")
@_DRY_RUN
def rescore(run_folder: Path, words: tuple[str, ...], dry_run: bool) -> None:
    """Judge the trajectories of a run's journal by another reward.

    \b
    agentverl rescore outputs/run reward.custom_reward_function.path=my_reward.py
    """
    settings = _settings((str(_run_folder(run_folder) / "config.yaml"), *words), "rescore")
    if dry_run:
        return _print_yaml(settings)
    from agentverl.trainer.rescore import rescore as run

    run(run_folder, settings)


@cli.command(name="eval")
@_WORDS
@_DRY_RUN
def evaluate(words: tuple[str, ...], dry_run: bool) -> None:
    """Measure a model on held-out tasks, by the agent loop it is trained with.

    \b
    agentverl eval                                       the quickstart's model before training
    agentverl eval outputs/run model.path=outputs/run/checkpoints/global_step_40/actor/huggingface
    agentverl eval outputs/run rollout.val_kwargs.n=4 rollout.val_kwargs.temperature=1
    """
    settings = _settings(words, "eval")
    if dry_run:
        return _print_yaml(settings)
    from agentverl.trainer.evaluate import evaluate as run

    run(settings)


@cli.command()
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--step", type=int, help="Only this step's trajectories; without it, the newest step's.")
@click.option("--uid", help="Only the samples of this prompt.")
@click.option(
    "--pick",
    type=click.Choice(["first", "best", "worst", "failed"]),
    default="first",
    show_default=True,
    help="Which come first, by reward; `failed` shows only those that failed.",
)
@click.option("--limit", type=click.IntRange(min=1), default=4, show_default=True, help="Trajectories shown.")
@click.option("--tokens", is_flag=True, help="Show ids, masks and log-probabilities, token by token.")
def show(run_folder: Path, step: int | None, uid: str | None, pick: "Pick", limit: int, tokens: bool) -> None:
    """Show what the model did: turns, tool calls, rewards, with the sampled tokens coloured.

    \b
    agentverl show outputs/quickstart
    agentverl show outputs/quickstart --step 10 --pick worst --limit 1 --tokens
    """
    from agentverl.tracking.show import show as render

    render(run_folder, step=step, uid=uid, pick=pick, limit=limit, tokens=tokens)


@cli.command()
@click.argument("model")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(min=0), default=8000, show_default=True, help="0 takes a free one.")
@click.option("--name", help="What requests call the model; without it, its folder.")
def serve(model: str, host: str, port: int, name: str | None) -> None:
    """Serve a model behind OpenAI's chat completions: a judge, or any helper of a run.

    \b
    agentverl serve nano --port 8000
    agentverl serve outputs/run/checkpoints/global_step_40/actor/huggingface --name judge
    """
    from agentverl.trainer.serve import serve as run

    run(model, host=host, port=port, name=name)


@cli.command()
@click.argument("checkpoint", metavar="CHECKPOINT", type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), help="Where to; else actor/huggingface in the checkpoint.")
def merge(checkpoint: Path, output: Path | None) -> None:
    """Make a model folder of a checkpoint, or of a run's newest one, and check its logits.

    \b
    agentverl merge outputs/run
    agentverl merge outputs/run/checkpoints/global_step_40 --output my_model
    """
    from agentverl.trainer.merge import merge as run

    run(checkpoint, output)


@cli.command(name="list")
@click.argument("kind", required=False)
def list_plugins(kind: str | None) -> None:
    """List the installed plugins, the recipes and the keys of the configuration.

    \b
    agentverl list                every kind
    agentverl list tools          one kind
    agentverl list settings       every key, its default and meaning
    """
    from agentverl.trainer.catalogue import print_catalogue

    print_catalogue(kind)


@cli.command()
def doctor() -> None:
    """Say what of this machine and of this install works."""
    from agentverl.trainer.doctor import examine, print_findings

    findings = examine()
    print_findings(findings)
    if any(finding.verdict == "broken" for finding in findings):
        raise AgentverlError("this machine cannot train; see what is broken above")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process: 2 bad input, 1 failure, 75 to be requeued, 130 Ctrl-C."""
    freed_memory.keep()
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run the command line; the exit code. What went wrong is one clear line on stderr."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        cli.main(args=list(arguments), prog_name="agentverl", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except AgentverlError as error:
        return _fail(error, str(error), error.exit_code)
    except Exception as error:
        return _fail(error, _unexpected(error), 1)
    return 0


def _fail(error: Exception, message: str, code: int) -> int:
    if os.environ.get("AGENTVERL_TRACEBACK") == "1":
        traceback.print_exception(error)
    click.echo(f"error: {message}", err=True)
    return code


def _unexpected(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{frame.filename}:{frame.lineno}"
    text = " ".join(str(error).split()) or "without a message"
    return f"unexpected {type(error).__name__} at {where}: {text} (AGENTVERL_TRACEBACK=1 shows the whole traceback)"


def _settings(words: tuple[str, ...], command: "Command") -> "Settings":
    from agentverl.settings.compose import compose_words

    settings = compose_words(words, command=command)
    _note_debug(settings.trainer.debug)
    return settings


def _note_debug(debug: bool) -> None:
    if debug:
        os.environ["AGENTVERL_TRACEBACK"] = "1"


def _run_folder(path: Path) -> Path:
    if not (path / "config.yaml").is_file():
        raise BadInputError(
            f"{path} is no run's folder (no config.yaml there); expected one such as outputs/quickstart"
        )
    return path


def _print_yaml(settings: "Settings | SFTSettings") -> None:
    from agentverl.settings.compose import to_yaml

    click.echo(to_yaml(settings), nl=False)
