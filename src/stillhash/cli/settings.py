"""Defaults of options from a file and from the environment.

Each option of a command is a setting: `port` of `stillhash serve` is `serve.port`, in the file `port` under `[serve]`,
in the environment STILLHASH_SERVE_PORT. The command line comes before the environment, and that before the file.
"""

import difflib
import inspect
import math
import os
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from stillhash.errors import InvalidInput, shortage
from stillhash.platform import SYSTEM

PREFIX = "STILLHASH_"
CONFIG_VARIABLE = "STILLHASH_CONFIG"
KEY_VARIABLES = tuple(f"STILLHASH_{role}_KEYS" for role in ("READ", "FEEDBACK", "WRITE", "ADMIN"))
SECRET_VARIABLES = ("STILLHASH_KEY", *KEY_VARIABLES)
CONTAINER_VARIABLES = (*(f"{name}_FILE" for name in KEY_VARIABLES), "STILLHASH_HEALTH_URL")
BUILD_VARIABLES = ("STILLHASH_REQUIRE_EXTENSION",)
OTHER_VARIABLES = (  # no settings
    *(CONFIG_VARIABLE, "STILLHASH_LANES"),
    *SECRET_VARIABLES,
    *CONTAINER_VARIABLES,
    *BUILD_VARIABLES,
)
# Options that choose what a single call changes or prints; as a default they would surprise.
ONLY_ON_THE_COMMAND_LINE = frozenset(("all", "delete-old", "json", "overwrite", "replace", "set", "where"))
MAX_SETTINGS_BYTES = 1 << 20
MASK = "********"
TRUE_WORDS, FALSE_WORDS = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
KIND_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "a text",
    list: "a list of texts",
}


class Setting(NamedTuple):
    """An option that may have a default of the user's."""

    key: str  # serve.port
    kind: type  # bool, int, float, str or list
    parameter: Any  # click's, or that of typer's own copy of click
    variable: str  # STILLHASH_SERVE_PORT

    @property
    def secret(self) -> bool:
        """Whether the value must not be printed."""
        return self.key.endswith(".key")

    @property
    def place(self) -> tuple[str, ...]:
        """Return the names of the command, groups first."""
        return tuple(self.key.split(".")[:-1])

    def check(self, value: Any, source: str) -> Any:
        """Return the value as the option takes it, or refuse it in the name of its source."""
        if self.kind is float and type(value) is int:
            value = float(value)
        got = MASK if self.secret else repr(value)
        wrong = type(value) is not self.kind
        wrong = wrong or (isinstance(value, float) and not math.isfinite(value))
        wrong = wrong or (isinstance(value, list) and not all(isinstance(each, str) for each in value))
        if wrong:
            raise InvalidInput(f"{source}: {self.key}: expected {KIND_NAMES[self.kind]}, got {got}")
        for name, sign, word in (("min", -1, "least"), ("max", 1, "most")):
            bound = getattr(self.parameter, name, getattr(getattr(self.parameter, "type", None), name, None))
            if bound is not None and self.kind in (int, float) and sign * (value - bound) > 0:
                raise InvalidInput(f"{source}: {self.key}: expected at {word} {bound}, got {got}")
        return value

    def parse(self, text: str, source: str) -> Any:
        """Return the value of a text: words for a list, true or false in several ways, or numbers."""
        value: Any = text
        try:
            if self.kind is bool:
                value = (text.lower() in TRUE_WORDS) if text.lower() in TRUE_WORDS + FALSE_WORDS else text
            elif self.kind in (int, float):
                value = self.kind(text)
            elif self.kind is list:
                value = text.split()
        except ValueError:
            pass
        return self.check(value, source)


class Effective(NamedTuple):
    """The value of a setting, and where it comes from: default, file or environment."""

    value: Any
    source: str


def all_settings(command: Any, place: tuple[str, ...] = ()) -> Iterator[Setting]:
    """Yield the settings of a command and of all below it."""
    for name, below in getattr(command, "commands", {}).items():
        if (*place, name) != ("config",):
            yield from all_settings(below, (*place, name))
    if place and not hasattr(command, "commands"):
        hints = typing.get_type_hints(inspect.unwrap(command.callback))
        for parameter in command.params:
            if parameter.param_type_name != "option" or option_name(parameter) in ONLY_ON_THE_COMMAND_LINE:
                continue
            key = ".".join((*place, option_name(parameter)))
            own = parameter.envvar if isinstance(parameter.envvar, str) else None
            yield Setting(key, _kind(hints[parameter.name]), parameter, own or variable_of(key))


def option_name(parameter: Any) -> str:
    """Return the name of an option as it is on the command line, without dashes."""
    names = [name for name in parameter.opts if name.startswith("--")] or parameter.opts
    return str(names[0]).lstrip("-")


def variable_of(key: str) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + key.replace(".", "_").replace("-", "_").upper()


def _kind(hint: Any) -> type:
    """Return what a setting holds, of the annotation of its option."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        hint = next(each for each in typing.get_args(hint) if each is not type(None))
    hint = typing.get_origin(hint) or hint
    return hint if hint in (bool, int, float, list) else str


def settings_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the settings file, which need not exist."""
    if named := environment.get(CONFIG_VARIABLE):
        return Path(named)
    return SYSTEM.settings_folder(environment) / "stillhash" / "config.toml"


def read_text(file: Path, required: bool) -> str:
    """Return the text of the settings file; nothing if there is none, unless it is required."""
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_SETTINGS_BYTES + 1)
        if len(data) > MAX_SETTINGS_BYTES:
            raise InvalidInput(f"{file}: expected at most {MAX_SETTINGS_BYTES:,} bytes of settings, got more")
        return data.decode()
    except (FileNotFoundError, NotADirectoryError):
        if required:
            raise InvalidInput(f"{CONFIG_VARIABLE}: expected an existing file, got {str(file)!r}") from None
        return ""
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, PermissionError) and not required and _is_out_of_reach(file):
            return ""
        problem = InvalidInput(f"{file}: expected a file of settings in TOML, got {error}")
        raise shortage(error) or problem from None


def _is_out_of_reach(file: Path) -> bool:
    """Return whether a folder above the file lets us not look into it, as the home of another user."""
    try:
        file.lstat()
    except PermissionError:
        return True
    return False


def parse_toml(text: str, file: Path) -> dict[str, Any]:
    """Return the tables of a file of settings."""
    import tomllib

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidInput(f"{file}: expected TOML, got {error}") from None


def flatten(table: Mapping[str, Any], settings: Mapping[str, Setting], place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys of nested tables, as `serve.port`, with their values; names may have _ in place of -."""
    for name, value in table.items():
        key = f"{place}{name}"
        key = key.replace("_", "-") if key not in settings else key
        if isinstance(value, dict) and value:
            yield from flatten(value, settings, f"{key}.")
        elif value != {} or not any(each.startswith(f"{key}.") for each in settings):
            yield key, value


def file_problems(text: str, file: Path, settings: Mapping[str, Setting]) -> tuple[dict[str, Any], list[str]]:
    """Return the values of a file that are right, and a sentence for each that is not."""
    values: dict[str, Any] = {}
    problems = []
    for key, value in flatten(parse_toml(text, file), settings):
        number = line_of(text, key)
        source = f"{file}:{number}" if number else str(file)
        try:
            values[key] = known(key, settings, source).check(value, source)
        except InvalidInput as error:
            problems.append(str(error))
    return values, problems


def known(key: str, settings: Mapping[str, Setting], source: str) -> Setting:
    """Return the setting of this name, or refuse it with the names that are most like it."""
    if key in settings:
        return settings[key]
    if key.rpartition(".")[2] in ONLY_ON_THE_COMMAND_LINE:
        raise InvalidInput(f"{source}: {key}: expected a setting, got an option that is only for the command line")
    raise InvalidInput(f"{source}: {key}: expected a setting, got an unknown one{near_match(key, list(settings))}")


def near_match(name: str, names: list[str]) -> str:
    """Return the question whether another name was meant, if one is alike."""
    match = difflib.get_close_matches(name, names, 1)
    return f". Did you mean {match[0]}?" if match else ""


def line_of(text: str, key: str) -> int | None:
    """Return the line that sets a key, if it is written in the usual way: under its table's header."""
    table: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split("#")[0].strip()
        if words.startswith("[") and words.endswith("]"):
            table = [part.strip(" \"'") for part in words.strip("[]").split(".")]
        elif "=" in words:
            parts = [part.strip(" \"'") for part in words.split("=")[0].split(".")]
            if ".".join((*table, *parts)).replace("_", "-") == key:
                return number
    return None


def environment_values(
    settings: Mapping[str, Setting], environment: Mapping[str, str] = os.environ
) -> tuple[dict[str, Any], list[str]]:
    """Return the settings that the environment has and that are right, and a sentence for each that is not."""
    values: dict[str, Any] = {}
    problems = []
    for key, setting in settings.items():
        if text := environment.get(setting.variable):
            try:
                values[key] = setting.parse(text, setting.variable)
            except InvalidInput as error:
                problems.append(str(error))
    return values, problems


def unknown_variables(settings: Mapping[str, Setting], environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return a sentence for each variable that looks like ours and has no meaning."""
    names = [*(setting.variable for setting in settings.values()), *OTHER_VARIABLES]
    strangers = sorted(name for name in environment if name.startswith(PREFIX) and name not in names)
    return [
        f"{name}: expected a variable of stillhash, got an unknown one{near_match(name, names)}" for name in strangers
    ]


def default_map(values: Mapping[str, Any], settings: Mapping[str, Setting]) -> dict[str, Any]:
    """Return the values as click takes them: by command, then by name of the parameter."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        table = tree
        for name in settings[key].place:
            table = table.setdefault(name, {})
        table[settings[key].parameter.name] = value
    return tree


def load(root: Any) -> dict[str, Any]:
    """Return the defaults of the user, as click takes them, or refuse them all if one is wrong."""
    file = settings_file()
    text = read_text(file, required=bool(os.environ.get(CONFIG_VARIABLE)))
    if not text.strip() and not any(name.startswith(PREFIX) and name not in OTHER_VARIABLES for name in os.environ):
        return {}
    settings = {setting.key: setting for setting in all_settings(root)}
    from_file, problems = file_problems(text, file, settings)
    from_environment, more = environment_values(settings)
    if problems + more:
        raise InvalidInput("; ".join(problems + more))
    return default_map(from_file | from_environment, settings)
