"""Encode images and texts to feature vectors.

An encoder is opened by its name and is the same function wherever it is opened: its fingerprint tells whether features
made elsewhere, or last year, may be compared with its own. Untrusted image bytes are decoded only in `pixels`.
"""

from stillhash.encoders.base import ENCODER_NAMES, Encoder, is_text_encoder, open_encoder

__all__ = ["ENCODER_NAMES", "Encoder", "is_text_encoder", "open_encoder"]
