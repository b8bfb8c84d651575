"""Commands that show, check and change the defaults of options: the settings file and the environment."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Exit, Option, Typer

from stillhash.cli import settings as source
from stillhash.cli.output import AsJson, answer
from stillhash.cli.settings import MASK, Effective, Setting
from stillhash.errors import InvalidInput, NotFound, StoreFailed

if TYPE_CHECKING:
    from rich.console import Console

CONFIG_GROUP_HELP = """Show and change defaults of options, from a file and the environment.

The command line comes before the environment (STILLHASH_SERVE_PORT), and that before the file (port under [serve]).

\b
Examples:
  stillhash config set serve.port 8080
  stillhash config show --changed
  stillhash config check
"""
app = Typer(help=CONFIG_GROUP_HELP, no_args_is_help=True)


def complete_key(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a setting."""
    return [key for key in _settings(ctx) if key.startswith(incomplete)]


KEY_HELP = "The command and its option: serve.port."
SettingKey = Annotated[str, Argument(metavar="KEY", help=KEY_HELP, autocompletion=complete_key)]


def _settings(ctx: typer.Context) -> dict[str, Setting]:
    return {setting.key: setting for setting in source.all_settings(ctx.find_root().command)}


def _file() -> tuple[Path, str]:
    """Return the settings file and its text, empty if there is none."""
    file = source.settings_file()
    return file, source.read_text(file, required=False)


def _effective(settings: dict[str, Setting]) -> dict[str, Effective]:
    """Return the value of every setting, with its source; secrets are masked."""
    file, text = _file()
    from_file, problems = source.file_problems(text, file, settings)
    from_environment, more = source.environment_values(settings)
    if problems + more:
        raise InvalidInput("; ".join(problems + more))
    values = {}
    for key, setting in settings.items():
        value = Effective(_plain(setting.parameter.default), "default")
        if key in from_file:
            value = Effective(from_file[key], "file")
        if key in from_environment:
            value = Effective(from_environment[key], f"environment: {setting.variable}")
        values[key] = value._replace(value=MASK) if setting.secret and value.value is not None else value
    return values


def _plain(default: Any) -> Any:
    return str(default) if isinstance(default, Path) else default


@app.command()
def show(
    ctx: typer.Context,
    changed: Annotated[bool, Option("--changed", help="Only those that are not the defaults of stillhash.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the value of every setting and where it comes from. Keys and other secrets are masked.

    \b
    Examples:
      stillhash config show --changed
      stillhash config show --json
    """
    values = _effective(_settings(ctx))
    listed = {key: value for key, value in values.items() if not changed or value.source != "default"}
    secrets = [name for name in source.SECRET_VARIABLES if os.environ.get(name)]
    result = {
        "file": str(source.settings_file()),
        "settings": {key: value._asdict() for key, value in listed.items()},
        "environment": dict.fromkeys(secrets, MASK),
    }
    answer(result, as_json, _show)


def _show(result: dict[str, Any], console: "Console") -> None:
    from rich.text import Text

    from stillhash.cli.toml_lines import format_value

    console.print(Text(f"file: {result['file']}"), soft_wrap=True)
    rows = [(key, each["value"], each["source"]) for key, each in result["settings"].items()]
    rows += [(name, value, "environment") for name, value in result["environment"].items()]
    for key, value, origin in rows:
        written = "none" if value is None else format_value(value)
        console.print(Text.assemble((key, "bold"), f" = {written}", (f"  ({origin})", "dim")), soft_wrap=True)


@app.command()
def get(ctx: typer.Context, key: SettingKey, as_json: AsJson = False) -> None:
    """Show the value of one setting.

    \b
    Examples:
      stillhash config get serve.port
    """
    settings = _settings(ctx)
    source.known(key, settings, "key")
    value = _effective(settings)[key]
    answer({"key": key, **value._asdict()}, as_json, "" if value.value is None else _text(value.value))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(value) if isinstance(value, list) else str(value)


@app.command(name="set")
def set_(
    ctx: typer.Context,
    key: SettingKey,
    value: Annotated[
        list[str], Argument(metavar="VALUE", help="The value; several for an option that may be repeated.")
    ],
    as_json: AsJson = False,
) -> None:
    """Set a default in the settings file, which is created if need be. Comments in it stay.

    \b
    Examples:
      stillhash config set serve.port 8080
      stillhash config set create.filter-field year country
      stillhash config set import.learn false
    """
    from stillhash.cli.toml_lines import set_value

    setting = source.known(key, _settings(ctx), "key")
    if setting.kind is not list and len(value) != 1:
        raise InvalidInput(f"value: expected one, got {len(value)}")
    parsed = setting.check(value, "value") if setting.kind is list else setting.parse(value[0], "value")
    file, text = _file()
    source.parse_toml(text, file)
    _write(file, set_value(text, key, parsed))
    written = MASK if setting.secret else parsed
    answer({"key": key, "value": written, "file": str(file)}, as_json, f"{key} is {_text(written)} in {file}")


@app.command()
def unset(ctx: typer.Context, key: SettingKey, as_json: AsJson = False) -> None:
    """Remove a default from the settings file. Unknown names can be removed too.

    \b
    Examples:
      stillhash config unset serve.port
    """
    from stillhash.cli.toml_lines import unset_value

    file, text = _file()
    if key not in dict(source.flatten(source.parse_toml(text, file), _settings(ctx))):
        raise NotFound(f"{key} is not in {file}")
    _write(file, unset_value(text, key))
    answer({"key": key, "file": str(file)}, as_json, f"{key} is removed from {file}")


def _write(file: Path, text: str) -> None:
    from stillhash.files.sealed_files import write_durably

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreFailed(f"{file.parent}: could not be created: {error}") from error
    write_durably(file.resolve(), [text.encode()])  # of a symbolic link, what it points to


@app.command()
def path(as_json: AsJson = False) -> None:
    """Show the path of the settings file, and whether it exists.

    It is $STILLHASH_CONFIG; else stillhash/config.toml in $XDG_CONFIG_HOME, or in ~/.config; on Windows in %APPDATA%.

    \b
    Examples:
      stillhash config path
      $EDITOR "$(stillhash config path)"
    """
    file = source.settings_file()
    answer({"path": str(file), "exists": file.is_file()}, as_json, str(file))


@app.command()
def check(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Check the settings file and the environment. The exit code is 2 if something is wrong.

    Every command refuses to run with a wrong setting. Unknown variables are reported here only.

    \b
    Examples:
      stillhash config check
      STILLHASH_CONFIG=new.toml stillhash config check --json
    """
    settings = _settings(ctx)
    file = source.settings_file()
    try:
        text = source.read_text(file, required=bool(os.environ.get(source.CONFIG_VARIABLE)))
        problems = source.file_problems(text, file, settings)[1]
    except InvalidInput as error:
        problems = [str(error)]
    problems += source.environment_values(settings)[1] + source.unknown_variables(settings)
    answer({"file": str(file), "problems": problems}, as_json, "\n".join(problems) or "OK")
    if problems:
        raise Exit(InvalidInput.exit_code)
