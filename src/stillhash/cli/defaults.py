"""Names and defaults of the library that help and completion show, as plain values: importing them takes no time.

A test compares each with the library.
"""

NEW_CODE_BITS = 128
DEFAULT_METHOD = "tally"
FIXED_CODE_NAMES = ("tally", "ohsl", "ohsl-sym", "oasis", "lego", "pca-itq", "lsh")
OTHER_METHOD_NAMES = ("ohweu", "hmoh", "bsodh", "mihash", "osuph", "okh", "osh", "lemon", "oesh")
PRESET_NAMES = (
    *("paper", "tables", "labelled-init", "ablation", "sweeps", "times", "quick", "drift"),
    *("few-labels", "labelled-share", "label-noise", "label-delay", "preprocessing", "text"),
)
CORPUS_NAMES = ("reuters", "debian")  # of texts
ROLE_NAMES = ("read", "feedback", "write", "admin")
LOG_FORMATS = ("json", "text", "off")
ENCODER_PREFIXES = ("classic", "onnx:", "timm:", "clip:", "words", "static:", "sentence:", "onnx-text:", "vectors:")
LABEL_SOURCES = ("auto", "folders", "sidecar", "tags", "none")
INDEX_KINDS = ("images", "texts")
TEXT_ENCODING_NAMES = ("utf-8", "latin-1")
CHUNK_WORDS = 200
MAX_TEXT_MIB = 16
MAX_AUDIT_ENTRIES = 100_000
MAX_VOTE_ENTRIES = 10_000
IMPORT_BATCH = 10_000  # rows
PORT = 8000
MCP_PORT = 8765
STORE_FILE = "store.db"  # a folder with this file is a collection
