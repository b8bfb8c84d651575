"""Folders of images as collections: files in, items with labels and thumbnails out, and queries that are images."""

from __future__ import annotations

from stillhash.images.indexing import Indexed, index_folder
from stillhash.images.label_sources import labels_from
from stillhash.images.query_encoder import Describer, describer

__all__ = ["Describer", "Indexed", "describer", "index_folder", "labels_from"]
