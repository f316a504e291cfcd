"""`ammrank completion`: let a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ammrank_dask.workflows.session.options import AmmrankCommand

SHELLS = ("bash", "zsh", "fish")


@click.command("completion", cls=AmmrankCommand)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script for shell completion of commands and options.

    bash: eval "$(ammrank completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc; fish: ammrank completion fish >
    ~/.config/fish/completions/ammrank.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "ammrank", "_AMMRANK_COMPLETE").source())


if __name__ == "__main__":
    command()
