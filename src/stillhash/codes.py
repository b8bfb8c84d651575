"""Ready codes of other libraries, for collections with `codes_only`: packings, texts and Hamming distances.

>>> from stillhash import codes
>>> packed = codes.from_packbits(model.encode(texts, precision="ubinary"))   # sentence-transformers
>>> hashes = codes.from_hex([str(imagehash.phash(image)) for image in images])
"""

from stillhash.numeric.codes import (
    from_bits,
    from_floats,
    from_hex,
    from_int8,
    from_packbits,
    hamming,
    signs,
    to_hex,
    to_packbits,
)

__all__ = [
    "from_bits",
    "from_floats",
    "from_hex",
    "from_int8",
    "from_packbits",
    "hamming",
    "signs",
    "to_hex",
    "to_packbits",
]
