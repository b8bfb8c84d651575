"""The `stillhash` command. It needs the extra [cli]; without it, says so."""

import sys

from stillhash.platform import SYSTEM


def main() -> None:
    SYSTEM.use_utf8_output()
    try:
        from stillhash.cli.main import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(f"stillhash: the command line needs {error.name}: pip install 'stillhash[cli]'", file=sys.stderr)
        sys.exit(6)
    run()


if __name__ == "__main__":
    main()
