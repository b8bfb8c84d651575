"""Settings of a server, and its certificate."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from stillhash.errors import InvalidInput
from stillhash.server.auth import Keys, is_loopback

MIN_RATE = 1 << 14  # bytes a second


@dataclass(frozen=True)
class Settings:
    """What a server listens on, reads from, and allows."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0 picks a free port
    keys: Keys = field(default_factory=Keys)
    rate_limit: float = 0.0  # requests a second of one client; 0 is no limit
    max_queued_writes: int = 64
    timeout: float = 30.0  # seconds until a request that has not started to write is refused
    max_body_bytes: int = 64 << 20
    max_json_bytes: int = 16 << 20  # of which numbers take a tenth of a second to parse, while all else waits
    max_rows: int = 10_000  # queries or items of a request
    max_hits: int = 10_000  # of a query
    max_total_hits: int = 200_000  # of a request
    max_answer_bytes: int = 16 << 20
    max_memory_bytes: int = 1 << 30  # that all requests in flight hold, in bodies and answers
    max_connections: int = 1000
    header_seconds: float = 10.0  # for the headers of a request to arrive
    body_seconds: float = 30.0  # for a body to arrive, and 1 second more for each `MIN_RATE` bytes
    send_seconds: float = 20.0  # for the client to take a piece of an answer
    images: Path | None = None  # folder that `image` paths in metadata are relative to; without it no file is read
    snapshots: Path | None = None  # folder for snapshots; without it there are none
    collections_folder: Path | None = None  # where clients with an admin key can create collections
    max_collections: int = 32  # with such a folder: how many there may be in all
    max_image_bytes: int = 32 << 20  # of an image to search for
    max_upload_bytes: int = 1 << 30  # of files to import
    device: str = "cpu"  # where collections that are created search: cpu, cuda, cuda:1 or auto
    session_idle: float = 3600.0  # seconds until an unused session of a browser ends
    tls_cert: Path | None = None  # PEM file; with it and its key the server speaks HTTPS
    tls_key: Path | None = None

    def validate(self) -> None:
        """Refuse to listen on an address that other machines can reach without keys, and an invalid certificate."""
        if not is_loopback(self.host) and not self.keys.required:
            raise InvalidInput(
                f"host: {self.host!r} can be reached from other machines, which requires keys. Run: stillhash keys add "
                "FILE --name NAME --role ROLE, and use --keys FILE"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls-cert" if self.tls_cert is None else "tls-key"
            raise InvalidInput(f"{missing}: expected both --tls-cert and --tls-key, got only one of them")
        if self.tls_cert is not None and self.tls_key is not None:
            load_certificate(self.tls_cert, self.tls_key)


def load_certificate(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return a context for TLS 1.2 and later with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
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
