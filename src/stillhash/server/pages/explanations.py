"""Explain why a hit is where it is."""

import json
from typing import Any, NamedTuple

from fastapi import Request
from starlette.responses import Response

from stillhash.collection import Answer, Collection, Hit
from stillhash.collection.ranking import DEFAULT_DEPTH
from stillhash.collection.types import Explanation, LabelShare
from stillhash.errors import InvalidInput, NotFound
from stillhash.server.dependencies import ExecutorParam
from stillhash.server.pages.cards import ViewModel
from stillhash.server.pages.queries import PageOptions, PageQuery, read_query
from stillhash.server.pages.rendering import page_router, render

HAMMING: Any = "hamming"  # a version to compare with
MAIN_SHARE = 0.15  # of a prediction, from which on a label is named in a sentence
MAX_NAMED_LABELS, MAX_LABEL_LENGTH = 3, 60  # in a sentence
MAX_BARS = 6  # of labels

router = page_router("read")


class LabelBar(NamedTuple):
    """A label with its share in the labels of the query, and in those of the hit: predicted, and stored now."""

    label: Any
    query: float
    hit: float


@router.get("/c/{name}/explain")
async def explain(request: Request, executor: ExecutorParam, id: str, left: str = "") -> Response:
    """Explain the rank of a hit."""
    query, options = await read_query(request, executor, request.query_params), PageOptions.parse(request.query_params)
    hit = await executor.read(lambda c: explain_hit(c, query, options, id, left=bool(left)))
    return render(request, "explanation.html", executor, query=query, why=hit, options=options)


def explain_hit(collection: Collection, query: PageQuery, options: PageOptions, name: str, *, left: bool) -> ViewModel:
    """Explain a hit of one column, and compare it with the other column's version and with Hamming distance."""
    if query.vector is None:
        raise InvalidInput("nothing to explain: these hits are found by their words alone")
    now = collection.search(query.vector, 1).version
    version, other = (options.against, now) if left else (None, options.against)
    fused = _fused_hit(collection, query, options, name, version)
    shared: dict[str, Any] = {
        "where": options.where,
        "version": version,
        "balance": None if left else options.balance,
    }
    count = options.last + 1 if fused is None else DEFAULT_DEPTH
    answer: Answer = collection.search(query.vector, count, explain=other, **shared)
    hit = next((hit for hit in answer.hits if json.dumps(hit.id) == name), None)
    if hit is None and fused is None:
        raise NotFound("the ranking has changed and this item is no longer among the hits. Search again")
    if hit is not None and hit.explanation is None:
        raise InvalidInput("nothing to explain: hits are still ranked by raw features, not by codes")
    context: ViewModel = {"hit": hit or fused, "fused": fused, "answer": answer, "left": left, "other_version": other}
    if hit is None or hit.explanation is None:
        return context | {"explanation": None}
    own = next((hit.explanation for hit in answer.hits if query.is_item(hit)), None)
    by_hamming: Answer = collection.search(query.vector, count, explain=HAMMING, **shared)
    hamming = next((one.explanation for one in by_hamming.hits if json.dumps(one.id) == name), None)
    own_hamming = next((one.explanation for one in by_hamming.hits if query.is_item(one)), None)
    why = hit.explanation
    return context | {
        "explanation": why,
        "rank": why.rank - (own is not None and own.rank < why.rank),
        "other_rank": _other_rank(why, own),
        "hamming_rank": None if hamming is None else _other_rank(hamming, own_hamming),
        "alike": None if why.similarity is None else round(100 * max(0.0, why.similarity)),
        "labels": None if why.query_labels is None else label_sentence(why, hit.labels),
        "parts": score_sentence(why),
        "bars": [] if hit.placed == "similarity" else label_bars(why.query_labels or [], why.hit_labels or []),
    }


def _fused_hit(
    collection: Collection, query: PageQuery, options: PageOptions, name: str, version: int | None
) -> Hit | None:
    """Return the hit of a search that also goes by words; None of other searches."""
    if query.vector is None or query.words is None or query.lexical_field is None:
        return None
    answer = collection.hybrid_search(
        query.vector, query.words, DEFAULT_DEPTH, where=options.where, version=version, balance=options.balance
    )
    hit = next((hit for hit in answer.hits if json.dumps(hit.id) == name), None)
    if hit is None:
        raise NotFound("the ranking has changed and this item is no longer among the hits. Search again")
    return hit


def _other_rank(why: Explanation, own: Explanation | None) -> int:
    """Return the rank by the other version, without the query's own item."""
    return why.other_rank - (own is not None and own.other_rank < why.other_rank)


def label_sentence(why: Explanation, stored: list[Any]) -> str:
    """Say which labels query and hit have in common: those that are predicted of both, and those that the hit has."""
    shared, query, hit = (_main_labels(some or []) for some in (why.shared_labels, why.query_labels, why.hit_labels))
    if shared:
        rest = [label for label in hit if label not in shared]
        agreement = "" if why.labels is None else f" They agree by {round(100 * max(0.0, why.labels))} %."
        same = f"Same labels: {_listed(_texts(shared))}."
        guessed = [label for label in shared if label not in stored]
        if not stored:
            same += " The hit has no labels yet; they are predicted of it."
        elif guessed:
            same += f" The hit does not have {_listed(_texts(guessed), 'or')}; it is predicted of it."
        return same + (f" The hit has {_listed(_texts(rest))} too." if rest else "") + agreement
    if not query and not hit:
        return "No label is known of either."
    of_query, of_hit = (_listed(_texts(some)) if some else "none that is known" for some in (query, hit))
    return f"Other labels: the query seems to have {of_query}, the hit {of_hit}."


def score_sentence(why: Explanation) -> str:
    """Say what labels, similarity and votes gave the hit; nothing where labels do not count, or not for this hit."""
    if not why.label_weight or why.page_score is None or why.labels is None or why.similarity is None:
        return ""
    by_labels, by_similarity = why.label_weight * why.labels, (1 - why.label_weight) * why.similarity
    by_votes, weight = why.page_score - by_labels - by_similarity, round(100 * why.label_weight)
    gave = [f"labels gave {by_labels:.2f}", f"similarity {by_similarity:.2f}"]
    gave += [f"votes {by_votes:.2f}"] if abs(by_votes) >= 0.005 else []
    count = f"Labels count {weight} % in this search, similarity {100 - weight} %"
    return f"{count}: of {why.page_score:.2f}, {_listed(gave)}."


def _main_labels(shares: list[LabelShare]) -> list[Any]:
    return [one.label for one in shares if one.share >= MAIN_SHARE][:MAX_NAMED_LABELS]


def _texts(labels: list[Any]) -> list[str]:
    """Return labels as texts that are not too long."""
    texts = map(str, labels)
    return [text if len(text) <= MAX_LABEL_LENGTH else text[:MAX_LABEL_LENGTH] + "…" for text in texts]


def _listed(labels: list[str], last: str = "and") -> str:
    """Return labels as a list in a sentence."""
    return f" {last} ".join([", ".join(labels[:-1]), labels[-1]] if len(labels) > 1 else labels)


def label_bars(query: list[LabelShare], hit: list[LabelShare]) -> list[LabelBar]:
    """Return the labels of both with their shares, those that both have first."""
    of_query, of_hit = ({one.label: one.share for one in some} for some in (query, hit))
    bars = [LabelBar(label, of_query.get(label, 0.0), of_hit.get(label, 0.0)) for label in of_query | of_hit]
    return sorted(bars, key=lambda bar: (-min(bar.query, bar.hit), -max(bar.query, bar.hit)))[:MAX_BARS]
