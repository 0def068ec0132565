"""A command as a program of its own, for a runner that types it."""

import typer


def alone(module):
    """The program whose one command is the function that has the module's name."""
    application = typer.Typer()
    application.command()(getattr(module, module.__name__.rpartition(".")[2]))
    return application
