"""The certificate of a server that speaks HTTPS itself."""

import ssl
from pathlib import Path

from stillhash.errors import InvalidInput


def load_certificate(certificate: Path, key: Path, context: ssl.SSLContext | None = None) -> ssl.SSLContext:
    """Return a context for TLS 1.2 and later with this certificate; or load it into one, for new connections."""
    context = context or ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for name, file in (("tls-cert", certificate), ("tls-key", key)):
        try:
            file.read_bytes()
        except OSError as error:
            raise InvalidInput(f"{name}: cannot read {str(file)!r}: {error}") from None
    try:
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except (OSError, ValueError) as error:
        expected = "expected a certificate in PEM and its private key without a password"
        raise InvalidInput(
            f"tls-cert, tls-key: {expected}, got {str(certificate)!r} and {str(key)!r}: {error}"
        ) from None
    return context


def _refuse_password() -> str:
    """Refuse instead of waiting for a password on the terminal."""
    raise ValueError("the private key has a password")
