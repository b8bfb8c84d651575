"""The `stillhash` command. It needs the extra [cli]; without it, says so."""

import os
import sys


def main() -> None:
    if sys.argv[1:] == ["--version"]:  # needs no extra, and takes no time
        import stillhash

        print(f"stillhash {stillhash.__version__}")
        return
    if "_STILLHASH_COMPLETE" in os.environ:  # typer would import rich to strip markup, of which our help has none
        sys.modules["rich"] = None  # type: ignore[assignment]
    from stillhash.platform import SYSTEM

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
