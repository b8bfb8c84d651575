"""Print small tables on a terminal: the one table printer of commands, benches and studies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

MIN_TABLE_WIDTH = 120  # a narrow terminal folds longer lines, which is better than cutting figures


def print_table(
    console: Console,
    title: str | None,
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    text: Sequence[str] = (),
) -> None:
    """Print `rows` under `columns`; a string cell may hold rich markup, a `Text` cell is printed as it is.

    Columns named in `text` are aligned left and fold on a narrow terminal. All others hold figures, which are aligned
    right and never fold, except a column without a heading, which holds names. A blank line follows a titled table.
    """
    table = Table(box=None, pad_edge=False, header_style="dim" if text else "bold")
    for column in columns:
        left = column in text or not column
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
