"""The similarity backend of FiftyOne, in a real dataset: a `mongod` is started for it on this machine."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import stillhash
from stillhash.errors import Conflict, InvalidInput, NotFound
from tests.support.guides import run_guide
from tests.support.mongod import find_mongod, running_mongod

if find_spec("fiftyone") is None or find_mongod() is None:
    pytest.skip("FiftyOne, or a mongod for it, is not installed", allow_module_level=True)
pytestmark = [
    pytest.mark.integrations,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of libraries that FiftyOne uses
]
KINDS = np.array(["cat", "dog", "sea", "sky"])
SETTINGS = {  # read when FiftyOne is imported
    "FIFTYONE_DATABASE_VALIDATION": "false",
    "FIFTYONE_DO_NOT_TRACK": "true",
    "FIFTYONE_SHOW_PROGRESS_BARS": "false",
}


@pytest.fixture(scope="module")
def fo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Import FiftyOne with a database, and with the backend registered."""
    folder, program = tmp_path_factory.mktemp("fiftyone"), find_mongod()
    assert program is not None
    with running_mongod(program, folder / "database") as address, pytest.MonkeyPatch.context() as patch:
        for name, value in {**SETTINGS, "FIFTYONE_DATABASE_URI": address, "HOME": str(folder)}.items():
            patch.setenv(name, value)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fiftyone = import_module("fiftyone")
            import_module("stillhash.integrations.fiftyone").register()
        yield fiftyone
        import_module("fiftyone.core.odm").get_db_client().close()


class Rows:
    """A dataset of rows in clusters, a kind of each in the field `kind`, and an index of it."""

    def __init__(self, fo: Any, folder: Path, count: int = 120, seed: int = 0, **settings: Any) -> None:
        rng = np.random.default_rng(seed)
        self.kinds: NDArray[Any] = rng.integers(0, len(KINDS), count)
        centres = np.random.default_rng(99).normal(size=(len(KINDS), 16))
        vectors = 0.7 * centres[self.kinds] + rng.normal(size=(count, 16))
        self.vectors = vectors.astype(np.float16).astype(np.float32)  # as they are stored
        self.vectors[0, 3] = -0.0  # which a mean of one row would turn into 0.0, another query to votes
        self.dataset = fo.Dataset()
        samples = [fo.Sample(filepath=f"{row}.png") for row in range(count)]
        for sample, kind in zip(samples, self.kinds, strict=True):
            sample["kind"] = fo.Classification(label=str(KINDS[kind]))
            sample.tags = ["train" if kind % 2 else "test"]
        self.dataset.add_samples(samples)
        self.ids: list[str] = self.dataset.values("id")
        self.index = self.compute("stillhash", folder=folder, **settings)

    def compute(self, backend: str, brain_key: str | None = "similar", **settings: Any) -> Any:
        brain = import_module("fiftyone.brain")
        return brain.compute_similarity(
            self.dataset, embeddings=self.vectors, brain_key=brain_key, backend=backend, **settings
        )

    def precision(self, queries: int) -> float:
        """Return the share of the first ten neighbours that are of the kind of the query, over some queries."""
        kind_of = dict(zip(self.ids, KINDS[self.kinds], strict=True))
        views = [self.index.sort_by_similarity(name, k=11).values(["id", "kind.label"]) for name in self.ids[:queries]]
        pages = [
            [kind == kind_of[query] for name, kind in zip(*view, strict=True) if name != query][:10]
            for query, view in zip(self.ids, views, strict=False)
        ]
        return float(np.mean(pages))


@pytest.fixture
def rows(fo: Any, tmp_path: Path) -> Rows:
    return Rows(fo, tmp_path)


def cosine_ranking(rows: Rows, query: NDArray[Any], among: list[int]) -> tuple[list[str], NDArray[Any]]:
    """Return these rows by their cosine with a query, the slow and plain way: ids and distances."""
    vectors = rows.vectors[among]
    distances = 1 - vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    order = np.argsort(distances)
    return [rows.ids[among[at]] for at in order], distances[order]


def test_ranks_by_cosine_before_items_have_codes(rows: Rows) -> None:
    everything, mean = list(range(len(rows.ids))), rows.vectors[:3].mean(axis=0)
    queries = [(rows.ids[5], rows.vectors[5]), (rows.vectors[7], rows.vectors[7]), (rows.ids[:3], mean), (mean, mean)]
    for query, vector in queries:
        names, distances = cosine_ranking(rows, vector, everything)
        view = rows.index.sort_by_similarity(query, k=20, dist_field="distance")
        assert view.values("id") == names[:20]
        np.testing.assert_allclose(view.values("distance"), distances[:20], atol=1e-5)
        assert rows.index.sort_by_similarity(query, k=20, reverse=True).values("id") == names[::-1][:20]
        assert rows.index.sort_by_similarity(query).values("id") == names


def test_ranks_the_items_of_a_view_only(rows: Rows) -> None:
    view = rows.dataset[10:60]
    names, _ = cosine_ranking(rows, rows.vectors[100], list(range(10, 60)))
    with rows.index.use_view(view):
        assert rows.index.index_size == 50
        assert rows.index.sort_by_similarity(rows.ids[100], k=30).values("id") == names[:30]
    with rows.index.use_view(rows.dataset.match_tags("absent")):
        assert len(rows.index.sort_by_similarity(rows.ids[0])) == 0
    rows.index.learn_labels(rows.dataset, "kind")
    with rows.index.use_view(view):
        assert set(rows.index.sort_by_similarity(rows.ids[100]).values("id")) == set(names)


def test_labels_that_arrive_late_are_learnt_once(fo: Any, tmp_path: Path) -> None:
    rows = Rows(fo, tmp_path, 400)
    before = rows.precision(100)
    learnt = rows.dataset[100:]  # the queries have no labels
    assert rows.index.learn_labels(learnt, "kind") == 300
    with stillhash.open(rows.index.path, read_only=True) as collection:
        codes, version = collection.codes(rows.ids), collection.stats()["version"]
    assert rows.precision(100) > before + 0.05
    assert rows.index.learn_labels(learnt, "kind") == 0
    with stillhash.open(rows.index.path, read_only=True) as collection:
        assert collection.stats()["version"] == version
    assert rows.index.learn_labels(rows.dataset, "kind") == 100
    with stillhash.open(rows.index.path, read_only=True) as collection:
        np.testing.assert_array_equal(collection.codes(rows.ids), codes)
        assert collection.get(rows.ids[0]).labels == [KINDS[rows.kinds[0]]]


def test_labels_of_several_fields(rows: Rows) -> None:
    assert rows.index.learn_labels(rows.dataset, "kind", "tags") == len(rows.ids)
    with stillhash.open(rows.index.path, read_only=True) as collection:
        kind = rows.kinds[3]
        assert collection.get(rows.ids[3]).labels == [KINDS[kind], "train" if kind % 2 else "test"]
    for fields in ((), ("absent",)):
        with pytest.raises(InvalidInput, match="fields"):
            rows.index.learn_labels(rows.dataset, *fields)


def test_votes(rows: Rows) -> None:
    query, *_, last = rows.index.sort_by_similarity(rows.ids[0]).values("id")
    assert rows.index.feedback(query, last, "up", source="ann") >= 1
    assert rows.index.sort_by_similarity(query, k=3).values("id")[0] == last
    rows.index.feedback(rows.vectors[0], [last, rows.ids[7]], ["down", "up"], source="ann")
    order = rows.index.sort_by_similarity(query).values("id")
    assert (order[0], order[-1]) == (rows.ids[7], last)
    with pytest.raises(InvalidInput, match="query"):
        rows.index.feedback(rows.ids[:2], last, "up")


def test_embeddings_are_added_replaced_and_removed(rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    index, ids = rows.index, rows.ids
    rows.index.learn_labels(rows.dataset, "kind")
    index.remove_from_index(sample_ids=ids[:10])
    assert index.total_index_size == index.index_size == len(ids) - 10
    index.remove_from_index(sample_ids=ids[:10])
    with pytest.raises(NotFound):
        index.remove_from_index(sample_ids=ids[:11], allow_missing=False)
    vectors, samples, labels = index.get_embeddings(sample_ids=ids[5:20])
    assert list(samples) == ids[10:20] and labels is None
    np.testing.assert_array_equal(vectors, rows.vectors[10:20])

    with pytest.raises(Conflict):
        index.add_to_index(rows.vectors, ids, overwrite=False, allow_existing=False)
    assert index.total_index_size == len(ids) - 10
    with caplog.at_level(logging.WARNING):
        index.add_to_index(rows.vectors[::-1], ids, overwrite=False, warn_existing=True)
    assert "110 ids" in caplog.text
    np.testing.assert_array_equal(index.get_embeddings(sample_ids=ids[3])[0], rows.vectors[-4:-3])
    np.testing.assert_array_equal(index.get_embeddings(sample_ids=ids[50])[0], rows.vectors[50:51])
    index.add_to_index(rows.vectors[::-1], ids)
    np.testing.assert_array_equal(index.get_embeddings(sample_ids=ids)[0], rows.vectors[::-1])
    with stillhash.open(index.path, read_only=True) as collection:
        assert collection.get(ids[50]).labels == [KINDS[rows.kinds[50]]]


@pytest.mark.parametrize("vectors", [np.zeros((3, 16)), np.zeros((2, 15)), np.full((2, 16), np.nan), np.zeros(16)])
def test_embeddings_that_do_not_fit_change_nothing(rows: Rows, vectors: NDArray[Any]) -> None:
    with pytest.raises(ValueError):
        rows.index.add_to_index(vectors, rows.ids[:2])
    np.testing.assert_array_equal(rows.index.get_embeddings(sample_ids=rows.ids)[0], rows.vectors)


def test_an_index_is_loaded_again_and_deleted(fo: Any, rows: Rows) -> None:
    rows.index.learn_labels(rows.dataset, "kind")
    order = rows.dataset.sort_by_similarity(rows.ids[0], k=10, brain_key="similar").values("id")
    rows.dataset.clear_cache()
    loaded = rows.dataset.load_brain_results("similar", cache=False)
    assert loaded is not rows.index and loaded.path == rows.index.path
    assert loaded.sort_by_similarity(rows.ids[0], k=10).values("id") == order
    loaded.remove_from_index(sample_ids=rows.ids[:5])  # while the other one is open
    rows.index.reload()
    assert rows.index.total_index_size == len(rows.ids) - 5
    loaded.cleanup()
    rows.dataset.delete_brain_run("similar")
    assert not loaded.path.exists() and loaded.total_index_size == 0


def test_an_index_without_a_key_is_temporary(rows: Rows) -> None:
    index = rows.compute("stillhash", None)
    path = index.path
    assert index.total_index_size == len(rows.ids) and path != rows.index.path
    index.cleanup()
    assert not path.exists()


@pytest.mark.parametrize("keep_features", [False, True])
def test_an_index_with_codes(fo: Any, tmp_path: Path, keep_features: bool) -> None:
    """An index of more than `init_rows` items ranks by codes from the start."""
    rows = Rows(fo, tmp_path, 320, init_rows=300, bits=64, keep_features=keep_features)
    with stillhash.open(rows.index.path, read_only=True) as collection:
        assert collection.stats()["fitted"] and collection.bits == 64
        queries = collection.reconstruct(rows.ids[:3])
        expected = [[hit.id for hit in answer.hits] for answer in collection.search(queries, 5)]
    assert (queries == rows.vectors[:3]).all() == keep_features
    views = [rows.index.sort_by_similarity(name, k=5, dist_field="distance") for name in rows.ids[:3]]
    assert [view.values("id") for view in views] == expected
    assert all(0 <= each <= 2 for view in views for each in view.values("distance"))
    assert [names[0] for names in expected] == rows.ids[:3]
    order = rows.index.sort_by_similarity(rows.ids[0]).values("id")
    assert rows.index.sort_by_similarity(rows.ids[0], k=7, reverse=True).values("id") == order[::-1][:7]
    assert rows.index.get_embeddings()[0].shape == (320, 16)


def test_queries_that_are_not_supported(rows: Rows) -> None:
    with pytest.raises(InvalidInput, match="aggregation"):
        rows.index.sort_by_similarity(rows.ids[:2], aggregation="post-min")
    with pytest.raises(InvalidInput, match="id"):
        rows.index.sort_by_similarity("0" * 24)
    with pytest.raises(InvalidInput, match="label_ids"):
        rows.index.remove_from_index(label_ids=rows.ids[:1])


def test_patches(fo: Any, tmp_path: Path) -> None:
    """Each picture has two detections, which are the items."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 4, (40, 2))
    vectors = (np.random.default_rng(1).normal(size=(4, 8))[kinds] + rng.normal(size=(40, 2, 8))).astype(np.float16)
    dataset = fo.Dataset()
    boxes = [[0.1, 0.1, 0.2, 0.2], [0.5, 0.5, 0.2, 0.2]]
    for row, pair in enumerate(kinds):
        found = [fo.Detection(label=str(KINDS[kind]), bounding_box=box) for kind, box in zip(pair, boxes, strict=True)]
        dataset.add_sample(fo.Sample(filepath=f"{row}.png", things=fo.Detections(detections=found)))
    embeddings = dict(zip(dataset.values("id"), vectors, strict=True))
    index = import_module("fiftyone.brain").compute_similarity(
        dataset, patches_field="things", embeddings=embeddings, brain_key="p", backend="stillhash", folder=tmp_path
    )
    samples, labels = dataset.values(["id", "things.detections.id"])
    assert index.total_index_size == 80
    assert set(index.label_ids) == {label for pair in labels for label in pair}
    patches = dataset.to_patches("things")
    view = patches.sort_by_similarity(labels[3][1], k=5, brain_key="p")
    assert view.values("id")[0] == labels[3][1] and view.values("sample_id")[0] == samples[3]
    assert index.sort_by_similarity(labels[3][1], k=1).values("id") == [samples[3]]
    assert index.learn_labels(dataset) == 80
    assert index.learn_labels(patches) == 0
    assert index.sort_by_similarity(labels[3][1], k=1).values("things.detections.id") == [[labels[3][1]]]
    many = index._kneighbors(query=[labels[0][0], labels[1][0]], k=3, return_dists=True)
    assert [len(column) for column in many] == [2, 2, 2] and [each[0] for each in many[1]] == [
        labels[0][0],
        labels[1][0],
    ]
    index.remove_from_index(sample_ids=samples[:1])
    index.remove_from_index(label_ids=labels[1][:1])
    assert index.total_index_size == 77
    features, owners, names = index.get_embeddings(sample_ids=samples[1])
    assert (list(owners), list(names)) == ([samples[1]], [labels[1][1]])
    np.testing.assert_array_equal(features, vectors[1, 1:])
    with pytest.raises(InvalidInput, match="fields"):
        index.learn_labels(dataset, "things")


def test_the_brain_reads_the_backend_from_the_environment(fo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "stillhash.integrations.fiftyone.StillhashSimilarityConfig"
    monkeypatch.setenv("FIFTYONE_BRAIN_SIMILARITY_BACKENDS", "*,stillhash")
    monkeypatch.setenv("FIFTYONE_BRAIN_SIMILARITY_STILLHASH_CONFIG_CLS", name)
    monkeypatch.setenv("FIFTYONE_BRAIN_SIMILARITY_STILLHASH_BITS", "64")
    backends = import_module("fiftyone.brain.config").BrainConfig().similarity_backends
    assert backends["stillhash"] == {"config_cls": name, "bits": 64} and "sklearn" in backends
    config = import_module("eta.core.utils").get_class(name)(bits=64)
    assert (config.bits, config.run_cls.__name__) == (64, "StillhashSimilarity")


def test_guide(fo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert os.environ["FIFTYONE_DATABASE_URI"].startswith("mongodb://127.0.0.1")
    assert run_guide("integrations/fiftyone.md", monkeypatch, tmp_path) >= 3
