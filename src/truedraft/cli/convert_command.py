"""`truedraft convert`: one drafter's config in another format; weights are linked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from truedraft.cli.options import JsonFlag, unwrap
from truedraft.cli.output import print_json
from truedraft.errors import ConfigError


def convert_command(
    draft: Annotated[str, typer.Argument(metavar="DRAFT", help="Drafter: a folder or a hub id.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="New folder to write.")],
    to: Annotated[
        str, typer.Option("--to", metavar="zlab|speculators", help="Format to write.", show_default=False)
    ],
    as_json: JsonFlag = False,
) -> None:
    """Write a drafter's config in another format.

    The new folder holds config.json and links to the weights. Both numberings of the capture layers
    are written and named. Only plain DFlash drafters have a place in both formats. With --json:
    folder, from, to, capture_layers, boundary_ids.

    \b
    Examples:
      truedraft convert DRAFT OUT --to speculators
      truedraft convert DRAFT OUT --to zlab --json
    """
    from truedraft.checkpoint.drafter import read_drafter_files
    from truedraft.checkpoint.export import FORMATS, export_config, write_folder

    wanted = next((name for name in FORMATS if name == to), None)
    if wanted is None:
        raise ConfigError("Unknown format to convert to", seen=to, allowed=", ".join(FORMATS))
    reading = read_drafter_files(draft)
    folder = write_folder(reading, export_config(reading, wanted), out)
    layers = [int(index) for index in reading.get("capture_layers")]
    boundary = [index + 1 for index in layers]
    if as_json:
        said = {"folder": str(folder), "from": reading.format, "to": wanted}
        print_json(said | {"capture_layers": layers, "boundary_ids": boundary})
        return
    print(f"written: {folder} ({reading.format} → {wanted})")
    print(f"  capture layers (0-based outputs, z-lab):      {', '.join(map(str, layers))}")
    print(f"  boundary ids (one higher, speculators, vLLM): {', '.join(map(str, boundary))}")


convert_command.__doc__ = unwrap(convert_command.__doc__ or "")
