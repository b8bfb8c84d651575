"""Index folders of images as collections with labels and thumbnails, and search them by image or text."""

from stillhash.images.indexing import IndexReport, index_folder
from stillhash.images.query_encoder import CollectionEncoder, align_images, open_query_encoder
from stillhash.io import open_labels

__all__ = ["CollectionEncoder", "IndexReport", "align_images", "index_folder", "open_labels", "open_query_encoder"]
