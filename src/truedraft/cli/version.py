"""`truedraft version`: ours, and of what we stand on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

from truedraft import __version__
from truedraft.cli.options import JsonFlag
from truedraft.cli.output import print_json

_STACK = ("torch", "transformers", "tokenizers", "safetensors", "fastapi", "uvicorn")


def version(as_json: JsonFlag = False) -> None:
    """Print the versions that decide results.

    \b
    Examples:
      truedraft version
      truedraft version --json
    """
    versions = {"truedraft": __version__, "python": platform.python_version()}
    for name in _STACK:
        try:
            versions[name] = installed_version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    if as_json:
        print_json(versions)
    else:
        for name, number in versions.items():
            print(f"{name:<14}{number}")
