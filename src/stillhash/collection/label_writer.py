"""Add labels to items, or remove some of theirs: many items in one call, which one more call takes back."""

from collections.abc import Callable
from typing import Any

from stillhash.collection.importer import Importer
from stillhash.collection.types import Id, ItemIds
from stillhash.collection.validation import check_ids, check_label_lists
from stillhash.errors import InvalidInput, report_shortages

LabelsOfItems = dict[Id, list[Any]]


@report_shortages
class LabelWriter(Importer):
    """The verbs that change some labels of items, and leave their others."""

    def add_labels(self, ids: ItemIds, labels: Any, *, learn: bool = True) -> LabelsOfItems:
        """Add labels to all of these items; return what labels those had that changed.

        labels: one list for all, or a single label. Items that have them already stay as they are, and are not learnt
        again. Ids that do not exist are refused, and nothing changes. learn: as in `relabel`, which takes it back:
        `relabel(list(before), list(before.values()))`.
        """
        added = check_shared(labels)
        return self._change_labels("add_labels", ids, lambda own: [*own, *added], learn)

    def remove_labels(self, ids: ItemIds, labels: Any, *, learn: bool = True) -> LabelsOfItems:
        """Remove labels from all of these items; return what labels those had that changed. Otherwise as `add_labels`.

        What was learnt from labels that are removed is taken out by the default method, as by `relabel`; with others
        it stays, unless it was still pending.
        """
        removed = check_shared(labels)
        return self._change_labels("remove_labels", ids, lambda own: [one for one in own if one not in removed], learn)

    def _change_labels(
        self, verb: str, ids: ItemIds, change_labels: Callable[[list[Any]], list[Any]], learn: bool
    ) -> LabelsOfItems:
        """Replace the labels of each item by what a change makes of them, in one transaction."""
        names, table = check_ids(ids), self._store.items
        with self._learning(verb, None) as change:
            rows = table.existing_rows(change.connection, names).tolist()
            contents = table.contents(change.connection, rows)
            own = [contents[row][1] for row in rows]
            new = check_label_lists(list(map(change_labels, own)), len(own))
            places = [place for place in range(len(names)) if new[place] != own[place]]
            changed = [names[place] for place in places]
            if changed:
                self._relabel(change.connection, changed, [new[place] for place in places], learn)
                change.count(changed)
                if learn:
                    self._trainer.fit_early(change.connection)
            return {names[place]: own[place] for place in places}


def check_shared(labels: Any) -> list[Any]:
    """Return the labels that a verb adds to all items, or removes from them: a list, or a single one."""
    if labels is None:
        raise InvalidInput("labels: expected a label, or a list of labels for all items, got None")
    (shared,) = check_label_lists([labels], 1)
    if not shared:
        raise InvalidInput("labels: expected at least one label, got none")
    return shared
