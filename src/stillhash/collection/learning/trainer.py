"""The trainer: fixes the hash functions once, learns from labelled rows, and publishes versions of the model.

Labelled rows are learnt once there are enough; fewer wait in the table `pending`. They are learnt in steps, and each
step is evaluated before it is learnt. The steps of one write, and the version they publish, are one transaction. A
version's model is in the store, its learner in files beside it.

Where items have rescoring codes, Tally learns sums over what is stored: each labelled item by its two codes and its
labels of now. What changes an item takes out what it gave, to the bit, and adds what it is now, in steps that double
until they have `learn_rows`. Other methods learn `learn_rows` at a time, from features, as published.
"""

from collections.abc import Callable, Sequence
from sqlite3 import Connection

import numpy as np

from stillhash.collection.learning.label_quality import LabelJudge
from stillhash.collection.learning.models import (
    check_learner,
    fingerprint,
    load_functions,
    load_model,
    model_bytes,
    stored_side,
    sum_stored,
)
from stillhash.collection.learning.prequential import (
    Chunk,
    Evaluation,
    LearningStep,
    StepObserver,
    load_history,
    save_history,
)
from stillhash.collection.learning.votes import MAX_CORRECTED_QUERIES, correct
from stillhash.collection.settings import new_hasher
from stillhash.collection.storage.items import NO_LABELS, NOT_JUDGED
from stillhash.collection.storage.learner import (
    MAX_VERSION,
    LearntRows,
    Lineage,
    NewVersion,
    SummedRows,
    TakenOut,
    extended,
    keeps_given,
    learn_step,
    lineage_of,
)
from stillhash.collection.storage.schema import RowNumbers, count_rows, get_meta, is_fitted, parsing, set_meta
from stillhash.collection.storage.store import Store
from stillhash.collection.storage.votes import StoredVote, check_stored_votes
from stillhash.collection.validation import LabelledRows
from stillhash.errors import BadState, NotFitted
from stillhash.files import remove_unlisted
from stillhash.hashers import Hasher, LinearHasher, Model, Tally
from stillhash.numeric.codes import feature_digests, signs
from stillhash.numeric.labels import MIN_ROWS, Labels
from stillhash.numeric.rescoring import Rescorer
from stillhash.numeric.validation import Codes, Mask, check_integer

MIN_INIT_ROWS = 300  # hash functions are fitted on at least so many rows, unless by `fit`
MIN_STEP_ROWS = 100
LEARN_CODES = 65_536  # the signs of so many labelled codes are in memory at a time
MAX_STEPS = 100  # one write is learnt in at most so many steps
CODE_SAMPLE_ROWS = 8192  # votes are compared with the codes of so many items


class Trainer:
    """All methods run inside a transaction of the store, one at a time."""

    def __init__(self, store: Store) -> None:
        self.store = store
        # Both are read again where the store is not at their version: after a transaction that failed.
        self._hasher: tuple[int, Hasher] | None = None  # a version, and what has learnt everything up to it
        self._functions: tuple[str | None, LinearHasher | None] = None, None  # with their fingerprint

    def fit(self, connection: Connection, sample: LabelledRows | None = None, new: LabelledRows | None = None) -> Codes:
        """Fix the hash functions, by a sample or by the first rows that wait, and encode these rows.

        new: rows that are not stored yet, which come after those that wait. Returns their codes.
        """
        settings = self.store.settings
        numbers, waiting = self.store.items.awaiting_codes(connection)
        rows = waiting if new is None else waiting.join(new)
        if sample is None:
            sample = rows.part(slice(0, min(settings["init_rows"], len(rows.features))))
        if len(sample.features) < 2:
            raise NotFitted(f"fit: expected at least 2 rows, better thousands, got {len(sample.features)}")
        hasher = new_hasher(settings)
        hasher.fit(sample.features, sample.labels)
        codes = hasher.encode_checked(rows.features, rows.labels)
        self.store.items.set_codes(connection, numbers, codes[: len(numbers)], feature_digests(waiting.features))
        self.store.votes.set_codes(connection)
        if self.store.features is not None:
            self.store.features.add(connection, numbers, waiting.features)
        self.start(connection, hasher, "fit", len(sample.features))
        if self.store.rescoring is not None:
            rescoring_codes = self.rescoring_codes(connection, waiting, codes[: len(numbers)])
            self.store.rescoring.add(connection, numbers, rescoring_codes)
            if self.store.summed_rows is not None:
                self.store.items.set_pending_codes(connection, numbers, rescoring_codes)
        return codes[len(numbers) :]

    def fit_early(self, connection: Connection) -> bool:
        """Fit the hash functions before `init_rows`, since something is to be learnt; return False if it cannot be yet.

        What waits is learnt too.
        """
        if is_fitted(connection) or int(get_meta(connection, "items")) < MIN_INIT_ROWS:
            return False
        self.fit(connection)
        self.flush(connection)
        return True

    def start(self, connection: Connection, hasher: Hasher, kind: str, rows: int, *, of_items: bool = False) -> None:
        """Fix the hash functions of a fitted hasher permanently, and publish what it has learnt as first version.

        of_items: the rows that it has learnt are the labelled items, by what is stored of them.
        """
        functions = hasher.functions().state()
        set_meta(connection, "functions", functions)
        set_meta(connection, "fingerprint", fingerprint(functions))
        learner = self.store.learner_files.checkpoint(self.store.versions.next_number(connection), hasher)
        if kind == "learn":
            save_history(connection, load_history(connection) | {"rows": rows})
            if self.store.summed_rows is not None and of_items:
                self.store.summed_rows.begin(connection, rows, self.store.versions.next_number(connection))
            elif self.store.summed_rows is not None:  # which cannot know them
                self.store.summed_rows.add_others(connection, rows)
        self._publish(connection, hasher, NewVersion(kind, rows, learner))

    def encode(self, connection: Connection, rows: LabelledRows) -> Codes | None:
        """Return the codes of new items, which hold their labels where codes see labels; None before `fit`."""
        functions = self.functions(connection)
        if functions is None:
            return None
        if self.store.settings["codes_only"]:
            return rows.features
        if self.store.settings["codes_see_labels"] and len(rows.labels.indices):
            return self.hasher(connection).encode_checked(rows.features, rows.labels)
        return functions.encode_checked(rows.features)

    def rescoring_codes(
        self, connection: Connection, rows: LabelledRows, codes: Codes, rescorer: Rescorer | None = None
    ) -> Codes:
        """Return the rescoring codes of rows with these codes, after `fit`; they have a mark where it holds labels.

        rescorer: of codes that are being built, in a collection that has none yet.
        """
        functions, rescorer = self.functions(connection), rescorer or self.store.rescorer
        assert functions is not None and rescorer is not None
        labelled = rows.labels.labelled & self.store.settings["codes_see_labels"]
        return functions.rescoring_codes(rescorer, rows.features, codes, labelled)

    def learn_again(self, connection: Connection, hasher: Tally) -> int:
        """Learn all labelled items, except pending ones, from what is stored of them, and publish a version.

        hasher: with the hash functions of the items; what it has learnt is not gone on from.
        """
        store, version = self.store, self.store.versions.next_number(connection)
        assert store.summed_rows is not None and store.rescoring is not None
        rows = store.summed_rows.begin(connection, load_history(connection)["rows"], version)
        pending = store.items.pending_rows(connection)
        store.items.set_pending_codes(connection, pending, store.rescoring.read(connection, pending)[0])
        learner, _ = sum_stored(store, connection, hasher)
        learner.count_unlabelled(connection.execute("SELECT count(*) FROM items WHERE labels = '[]'").fetchone()[0])
        set_meta(connection, "unlabelled", 0)
        for earlier in store.versions.learners(connection):  # of sums over something else
            store.versions.set_learner(connection, earlier, None)
        files = store.learner_files.checkpoint(version, learner)
        return self._publish(connection, learner, NewVersion("learn again", rows, files))

    def learn_items(
        self,
        connection: Connection,
        numbers: Sequence[int],
        rows: LabelledRows,
        codes: Codes | None,
        own_features: Mask | None = None,
    ) -> None:
        """Learn from the labelled rows of items, after those that are pending, once they are enough together.

        rows: with rescoring codes in place of features, where sums are taken of these. own_features: which rows have
        the features of their items, not rebuilt from codes; None: all.
        """
        labelled = rows.labels.labelled
        if not labelled.all():
            self.count_unlabelled(connection, int((~labelled).sum()))
            numbers, rows = np.asarray(numbers)[labelled].tolist(), rows.select(labelled)
            codes = None if codes is None else codes[labelled]
            own_features = None if own_features is None else own_features[labelled]
        if codes is None or not self.store.settings["codes_only"]:
            self._learn_labelled(connection, numbers, rows, codes, own_features)
            return
        for step in rows.steps(LEARN_CODES):  # of ready codes the features are the signs
            part = rows.part(step)._replace(features=signs(codes[step], self.store.settings["bits"]))
            own = None if own_features is None else own_features[step]
            self._learn_labelled(connection, numbers[step], part, codes[step], own)

    def _learn_labelled(
        self,
        connection: Connection,
        numbers: Sequence[int],
        rows: LabelledRows,
        codes: Codes | None,
        own_features: Mask | None,
    ) -> None:
        waiting = self.count_waiting(connection)
        if codes is None or not self._is_enough(connection, waiting + len(rows.features)):
            self.store.items.add_pending(connection, numbers, rows, codes, own_features)
            return
        judged = np.asarray(numbers, np.int64)
        if own_features is not None:
            judged = np.where(own_features, judged, NOT_JUDGED)
        if count_rows(connection, "pending"):
            earlier, earlier_codes, earlier_judged = self.store.items.take_pending(connection)
            rows, codes = earlier.join(rows), np.concatenate([earlier_codes, codes])
            judged = np.concatenate([earlier_judged, judged])
        if waiting or len(rows.features):
            self._learn(connection, rows, codes, judged)

    def _is_enough(self, connection: Connection, changes: int) -> bool:
        """Return whether so many changes are learnt at once, and do not wait for others.

        Sums over what is stored are learnt in steps that double, up to `learn_rows`: so the first labels count from the
        start, and the first `learn_rows` of them take few solutions.
        """
        least = self.store.settings["learn_rows"]
        if self.store.summed_rows is not None:
            least = min(least, max(1, self.store.summed_rows.count_learnt(connection, changes + 1)))
        return is_fitted(connection) and changes >= least

    def learn_waiting(self, connection: Connection) -> None:
        """Learn what waits, if it is enough."""
        if self._is_enough(connection, self.count_waiting(connection)):
            self.flush(connection)

    def take_out(self, connection: Connection, numbers: Sequence[int]) -> int:
        """Let the next step of learning take out what these items gave, before they change; return how many did.

        That can be where the sums are over what is stored; elsewhere nothing happens. Of items whose codes are lost,
        `repair` takes it out.
        """
        summed, rescoring = self.store.summed_rows, self.store.rescoring
        if summed is None or rescoring is None or not is_fitted(connection):
            return 0
        self.store.items.drop_pending(connection, numbers)
        held = summed.held(connection, numbers)
        codes, coded = self.store.codes.codes_of(connection, held.numbers)
        rescoring_codes, known = rescoring.read(connection, held.numbers)
        known &= coded
        summed.remove(connection, held.select(known), rescoring_codes[known], codes[known])
        return int(known.sum())

    @parsing("items")
    def wait_again(self, connection: Connection, rows: RowNumbers) -> None:
        """Let the next step learn these rows as they are now, and take out what they gave; for `repair`."""
        summed, rescoring = self.store.summed_rows, self.store.rescoring
        assert summed is not None and rescoring is not None
        self.take_out(connection, rows.tolist())
        texts = self.store.items.label_texts(connection, rows.tolist())
        summed.drop(connection, [row for row in rows.tolist() if row not in texts])
        labelled = rows[[texts.get(row, NO_LABELS) != NO_LABELS for row in rows.tolist()]]
        codes, _ = self.store.codes.codes_of(connection, labelled)
        rescoring_codes, _ = rescoring.read(connection, labelled)
        pending = LabelledRows.from_texts(rescoring_codes, [texts[row] for row in labelled.tolist()])
        self.store.items.add_pending(connection, labelled.tolist(), pending, codes)

    def count_unlabelled(self, connection: Connection, rows: int) -> None:
        """Take note of so many more items without labels, for when the next rows are learnt."""
        set_meta(connection, "unlabelled", int(get_meta(connection, "unlabelled")) + rows)

    def count_waiting(self, connection: Connection) -> int:
        """Count the rows that wait to be learnt, and to be taken out."""
        removals = 0 if self.store.summed_rows is None else self.store.summed_rows.count_removals(connection)
        return count_rows(connection, "pending") + removals

    def flush(self, connection: Connection) -> None:
        """Learn the pending rows, and take out what waits for that, however few."""
        if self.count_waiting(connection):
            rows, codes, judged = self.store.items.take_pending(connection)
            self._learn(connection, rows, codes, judged)

    def learn(self, connection: Connection, rows: LabelledRows) -> int:
        """Learn from rows that are not stored as items, after those that are pending; return the version."""
        self.hasher(connection)  # raises NotFitted before anything is taken
        self.flush(connection)
        hasher, given = self.hasher(connection), False
        codes = hasher.encode_checked(rows.features, rows.labels)
        if self.store.summed_rows is not None:
            assert isinstance(hasher, Tally)
            rows = rows._replace(features=self.rescoring_codes(connection, rows, codes))
            others, files = self.store.summed_rows.count_others(connection), self._current_files(connection)
            # Kept apart, so that `verify` can compute the sums again: all of them, or none.
            given = hasher.half_life is None and (not others or keeps_given(files))
            self.store.summed_rows.add_others(connection, int(rows.labels.labelled.sum()))
        return self._learn(connection, rows, codes, np.full(len(codes), NOT_JUDGED), given=given)

    def _learn(
        self, connection: Connection, rows: LabelledRows, codes: Codes, judged: RowNumbers, *, given: bool = False
    ) -> int:
        """Learn rows step by step, and publish one version; each step is evaluated before it is learnt, and its labels.

        judged: the rows whose labels are judged, or NOT_JUDGED. given: they are no items, and are kept apart.
        """
        hasher, files = self.hasher(connection), self._current_files(connection)
        unlabelled = int(get_meta(connection, "unlabelled"))
        set_meta(connection, "unlabelled", 0)
        history, version = load_history(connection), self.store.versions.next_number(connection)
        points, before = len(history["curve"]), history["rows"]
        taken_out = self._taken_out(connection, before)
        rows_of_step = step_rows(hasher, self.store.settings["learn_rows"], len(codes))
        learnt, self._hasher = LearntRows(rows, codes, rows_of_step, unlabelled, taken_out, given), None
        hasher.count_unlabelled(unlabelled)
        # What was learnt before and comes back with other labels was judged and evaluated then.
        new_rows, new_codes, new = learnt.take_out(hasher)
        history["rows"] += int(rows.labels.labelled[~new].sum())
        # The first steps are short where sums are over what is stored: too short to measure, and to judge others by.
        most = 0 if self.store.summed_rows is None else self.store.settings["learn_rows"]
        observers: list[StepObserver] = [
            Evaluation(history, version, min(most, MIN_STEP_ROWS) / 2),
            LabelJudge(self.store, connection, judged[new], min(most, MIN_ROWS)),
        ]
        for step in new_rows.steps(rows_of_step):
            part = new_rows.part(step)
            chunk = self._chunk(hasher, part, new_codes[step])
            is_remainder = 2 * len(part.features) < min(rows_of_step, len(new_codes))
            for observer in observers:
                observer.observe(LearningStep(hasher, chunk, step, history["rows"], is_remainder))
            learn_step(hasher, part, new_codes[step])
            history["rows"] += int(part.labels.labelled.sum())
        save_history(connection, history)
        if self.store.learnt_rows is not None:
            self.store.learnt_rows.add(connection, version, judged, rows.label_texts, rows.labels.labelled)
        if self.store.summed_rows is not None:
            items = np.flatnonzero((judged != NOT_JUDGED) & rows.labels.labelled)
            learnt_until = (before + np.cumsum(rows.labels.labelled))[items].tolist()
            texts = [rows.label_texts[place] for place in items.tolist()]
            self.store.summed_rows.add(connection, version, SummedRows(judged[items], texts, learnt_until))
            self.store.summed_rows.clear_removals(connection)
        learner = self.store.learner_files.extend(files, version, learnt, hasher)
        added = history["curve"][points:]
        notes = {"quality": history["quality"], "drift": any(point["drift"] for point in added)} if added else None
        return self._publish(connection, hasher, NewVersion("learn", int(rows.labels.labelled.sum()), learner, notes))

    def _taken_out(self, connection: Connection, rows_learnt: int) -> TakenOut:
        """Return what this step of learning takes out first."""
        if self.store.summed_rows is None:
            return TakenOut.nothing()
        removed = self.store.summed_rows.removals(connection)
        ages = np.array([max(0, rows_learnt - learnt) for learnt in removed.learnt], np.int64)
        return TakenOut(removed.rescoring_codes, removed.codes, removed.label_texts, ages)

    def _chunk(self, hasher: Hasher, rows: LabelledRows, codes: Codes) -> Chunk:
        """Return rows that are about to be learnt as an evaluation sees them."""
        rescorer = self.store.rescorer
        if self.store.summed_rows is not None and rescorer is not None:
            rescoring_codes: Codes = rows.features
            features = rescorer.decode(rescoring_codes) + hasher.mean_
            return Chunk(features, rows.labels, codes, rescorer, rescoring_codes)
        stored = None if rescorer is None else rescorer.encode(hasher.prepare(rows.features))
        return Chunk(rows.features, rows.labels, codes, rescorer, stored)

    def feedback(self, connection: Connection, votes: list[StoredVote]) -> int:
        """Store votes, and publish a version that has learnt from them; 0 before there are hash functions."""
        if not is_fitted(connection):
            self.store.votes.add(connection, 0, votes)
            return 0
        self.store.votes.add(connection, self.store.versions.next_number(connection), votes)
        hasher, files = self.hasher(connection), self._current_files(connection)
        return self._publish(connection, hasher, NewVersion("feedback", len(votes), files))

    def rollback(self, connection: Connection, version: int) -> int:
        """Publish the model of an earlier version again; return its new number."""
        version = check_integer(version, "version", 1, MAX_VERSION)
        model = load_model(self.store, connection, version)
        files = self.store.versions.learners(connection).get(version)
        hasher = self.hasher(connection) if files is None else self._load(connection, files)
        if self.store.summed_rows is not None:  # the sums are those of what is stored, whatever model ranks
            files, hasher = None, self.hasher(connection)
        lineage = lineage_of(connection, version if files else None)
        files = files or self._current_files(connection)
        self.store.votes.drop_after(connection, version)
        new = NewVersion(f"rollback to {version}", 0, files)
        return self._publish(connection, hasher, new, model, lineage)

    def forget(self, connection: Connection, change: Callable[[Hasher], None]) -> int:
        """Publish what is left once a change took something out of the learner; no row is left in a learner file."""
        hasher, version = self.hasher(connection), self.store.versions.next_number(connection)
        self._hasher, files = None, self._current_files(connection)
        hasher.count_unlabelled(int(get_meta(connection, "unlabelled")))
        set_meta(connection, "unlabelled", 0)
        if self.store.summed_rows is not None:
            self._taken_out(connection, load_history(connection)["rows"]).unlearn(hasher)
            self.store.summed_rows.clear_removals(connection)
        change(hasher)
        given = self.store.learner_files.given(files, hasher)
        files = self.store.learner_files.checkpoint(version, hasher, given)
        return self._publish(connection, hasher, NewVersion("forget", 0, files))

    def _publish(
        self,
        connection: Connection,
        hasher: Hasher,
        new: NewVersion,
        model: Model | None = None,
        lineage: Lineage | None = None,
    ) -> int:
        """Make a model the current version: this one, or what the hasher has learnt corrected by the votes.

        lineage: what the hasher has learnt, if that does not follow from the current version.
        """
        versions = self.store.versions
        if self.store.learnt_rows is not None:
            current = lineage_of(connection) if lineage is None else lineage
            current = extended(current, versions.next_number(connection)) if new.kind == "learn" else current
            new = new._replace(notes={**(new.notes or {}), "lineage": current})
        with self.store.reading() as committed:  # in case this transaction fails, what it goes back to must be there
            needed = versions.learner_files(committed) + versions.learner_files(connection)
        remove_unlisted(self.store.path / "learner", {*needed, *new.learner})
        if model is None:
            model = hasher.model()
            if votes := self.store.votes.of_latest_queries(connection, MAX_VERSION, MAX_CORRECTED_QUERIES):
                check_stored_votes(votes, self.store.items.dim, self.store.items.code_bytes)
                with parsing("votes"):
                    model = correct(hasher, model, votes, self.store.codes.sample(connection, CODE_SAMPLE_ROWS))
        version = versions.publish(connection, new, stored_side(model), model_bytes(model))
        self._hasher = version, hasher
        return version

    def hasher(self, connection: Connection) -> Hasher:
        """Return the hasher that has learnt everything up to the current version."""
        version = int(get_meta(connection, "version"))
        if self._hasher is None or self._hasher[0] != version:
            self._hasher = version, self._load(connection, self._current_files(connection))
        return self._hasher[1]

    def functions(self, connection: Connection) -> LinearHasher | None:
        """Return the fixed hash functions; None before they are fitted."""
        fingerprint = get_meta(connection, "fingerprint")
        if fingerprint != self._functions[0]:
            self._functions = fingerprint, load_functions(connection)
        return self._functions[1]

    def _current_files(self, connection: Connection) -> list[str]:
        files = self.store.versions.learners(connection).get(get_meta(connection, "version"))
        if files is None and is_fitted(connection):
            raise BadState("learner: the files of the current version are lost. Roll back to a version that has them.")
        if files is None:
            raise NotFitted("learn: the hash functions are not fitted yet: add more rows, or call fit")
        return files

    def _load(self, connection: Connection, files: list[str]) -> Hasher:
        hasher = self.store.learner_files.load(files)
        check_learner(hasher, connection, files[0])
        return hasher


def step_rows(hasher: Hasher, learn_rows: int, count: int) -> int:
    """Return how many of `count` rows are evaluated and learnt in one step.

    Steps are what separate writes of `learn_rows` would be. Where that makes no difference to what is learnt, they are
    neither so short that an evaluation says little, nor so many that it takes longer than learning.
    """
    return max(learn_rows, MIN_STEP_ROWS, -(-count // MAX_STEPS)) if hasher.chunk_invariant else learn_rows


def fix_identity(store: Store) -> None:
    """Fix the hash functions of a collection of ready codes, unless they are fixed already; this ends its creation."""
    with store.reading() as connection:
        if is_fitted(connection):
            return
    hasher = new_hasher(store.settings)
    hasher.begin(np.ones((1, store.settings["bits"]), np.float32), Labels.empty())
    with store.change("fit") as change:
        Trainer(store).start(change.connection, hasher, "fit", 0)
