"""From pictures and words to feature vectors.

An encoder is opened by its name and is the same function wherever it is opened: its fingerprint tells whether features
made elsewhere, or last year, may be compared with its own. Pictures are decoded in one place, `pixels`, which trusts no
byte of them.
"""

from __future__ import annotations

from stillhash.encoders.base import KNOWN, Encoder, open_encoder

__all__ = ["KNOWN", "Encoder", "open_encoder"]
