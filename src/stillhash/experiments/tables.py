"""Print small tables and report progress on a terminal: the same for commands, benches and studies."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from string import Formatter
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

MIN_TABLE_WIDTH = 120  # a narrow terminal folds longer lines, which is better than cutting figures

TableRows = Iterable[Sequence[str | Text]]
ReportProgress = Callable[[str], None]


def silent(_: str) -> None:
    """Report no progress."""


class TableData(NamedTuple):
    """What `print_table` takes."""

    title: str | None
    columns: Sequence[str]
    rows: TableRows


class _CellFormatter(Formatter):
    """Formats a dictionary of median, low and high as the median with its quartiles."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, dict):
            return f"{value['median']:.2f} [dim]\\[{value['low']:.2f}, {value['high']:.2f}][/]"
        return str(super().format_field(value, format_spec))


def format_table(title: str | None, columns: str, rows: Iterable[Mapping[str, Any]]) -> TableData:
    """Make a table of dictionaries; `columns` holds headings and format strings: "D: {dim} | ms: {ms[add]:.1f}"."""
    pairs = [column.split(":", 1) for column in columns.split("|")]
    formatter = _CellFormatter()
    cells = [[formatter.vformat(cell.strip(), (), row) for _, cell in pairs] for row in rows]
    return TableData(title, [heading.strip() for heading, _ in pairs], cells)


def print_table(
    console: Console, title: str | None, columns: Sequence[str], rows: TableRows, *, text: Sequence[str] = ()
) -> None:
    """Print `rows` under `columns`; a string cell may hold rich markup, a `Text` cell is printed as it is.

    Columns named in `text` are aligned left and fold on a narrow terminal. All others hold figures, which are aligned
    right and never fold, except a column without a heading, which holds names. A blank line follows a titled table.
    """
    table = Table(box=None, pad_edge=False, header_style="dim" if text else "bold")
    for column in columns:
        left = column in text or not column.strip()
        table.add_column(column, justify="left" if left else "right", overflow="fold", no_wrap=column not in text)
    for row in rows:
        table.add_row(*row)
    if title is not None:
        console.print(f"[bold]{title}[/]", highlight=False, soft_wrap=True)
    before = console.width
    if not text:
        console.width = max(before, MIN_TABLE_WIDTH)
    console.print(table, highlight=False)
    console.width = before
    if title is not None:
        console.print()


def print_sections(console: Console, sections: Iterable[TableData | str]) -> None:
    """Print tables, and lines of rich markup between them."""
    for section in sections:
        if isinstance(section, str):
            console.print(section, highlight=False, soft_wrap=True)
        else:
            print_table(console, *section)
