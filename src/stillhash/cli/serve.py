"""Commands that serve collections: over HTTP, with a page, and to assistants by the Model Context Protocol."""

import functools
import math
import socket
import sys
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option, Typer

import stillhash
from stillhash.cli.completion import LOG_FORMATS, MCP_PORT, PORT, one_of
from stillhash.cli.completion import collections as complete_collections
from stillhash.cli.options import CollectionPath, optional_module
from stillhash.cli.output import answer, note
from stillhash.errors import InvalidInput, StillhashError

REMOTE_RATE_LIMIT = 100.0  # requests a second of one client, if other machines can reach the server
HOST_HELP = "Where to listen; addresses other than localhost require keys."
IMAGE_ENCODER_HELP = "Encoder of query images and texts, if not the collections' own."
STANDBY_HELP = "Wait while another process writes a collection, and take over when it ends."
IMAGES_HELP = "Folder that `image` paths in metadata are relative to."
CLUSTER_HELP = "Ray cluster whose shards serve fronts: see 'stillhash cluster front'."
STORAGE_HELP = "With --cluster: folder that all nodes see, or URL, to publish to; default: PATH.shards."
RATE_HELP = f"Requests a second of one client, 0 for no limit; default {REMOTE_RATE_LIMIT:g}, on localhost 0."
MEMORY_HELP = "Memory for the bodies and answers of all requests in flight."
KEYS_HELP = "File of 'stillhash keys add'; also STILLHASH_READ_KEYS, ..._FEEDBACK_KEYS, _WRITE_KEYS, _ADMIN_KEYS."
FOLDER_HELP = "Folder in which clients with an admin key may create and delete collections."
LOG_HELP = "json, text or off; text on a terminal."
IDLE_HELP = "How long an unused session of the page lasts."
DEVICES = ("cpu", "cuda", "auto")
DEVICE_HELP = "Where to search: cpu, cuda, cuda:1, or auto, a GPU if there is one."
CERT_HELP = "Certificate in PEM, with its chain: serve HTTPS."
CERT_KEY_HELP = "Private key of the certificate, in PEM."
SNAPSHOTS_HELP = "Folder for snapshots."
HTTP_HELP = "Serve by streamable HTTP on 127.0.0.1, not over stdin and stdout."
ALLOW_FEEDBACK_HELP = "Add a tool that votes on hits; no other process can write then."
TEXT_ENCODER_HELP = "Encoder of query texts, if not the collection's own."
ADDRESS_HELP = "Print the address with --http, and errors, as one JSON object."


app = Typer()

# Options of servers; those that a deployment sets have a variable too.
Host = Annotated[str, Option(envvar="STILLHASH_SERVE_HOST", metavar="ADDRESS", help=HOST_HELP)]
Port = Annotated[int, Option(envvar="STILLHASH_SERVE_PORT", min=0, max=65535, help="0 picks a free port.")]
KeyFile = Annotated[Path | None, Option(envvar="STILLHASH_SERVE_KEYS", metavar="FILE", help=KEYS_HELP)]
RequestRate = Annotated[float | None, Option(envvar="STILLHASH_SERVE_RATE", min=0, metavar="N", help=RATE_HELP)]
LogFormat = Annotated[
    str, Option(envvar="STILLHASH_SERVE_LOG", metavar="FORMAT", help=LOG_HELP, autocompletion=one_of(*LOG_FORMATS))
]
Certificate = Annotated[Path | None, Option(envvar="STILLHASH_SERVE_TLS_CERT", metavar="FILE", help=CERT_HELP)]
CertificateKey = Annotated[Path | None, Option(envvar="STILLHASH_SERVE_TLS_KEY", metavar="FILE", help=CERT_KEY_HELP)]
Snapshots = Annotated[Path | None, Option(envvar="STILLHASH_SERVE_SNAPSHOTS", metavar="FOLDER", help=SNAPSHOTS_HELP)]
CollectionsFolder = Annotated[
    Path | None, Option(envvar="STILLHASH_SERVE_COLLECTIONS_FOLDER", metavar="FOLDER", help=FOLDER_HELP)
]
Device = Annotated[
    str, Option(envvar="STILLHASH_SERVE_DEVICE", metavar="DEVICE", help=DEVICE_HELP, autocompletion=one_of(*DEVICES))
]
MaxBody = Annotated[
    int, Option(envvar="STILLHASH_SERVE_MAX_BODY_MIB", min=1, metavar="MIB", help="Largest body of a request.")
]
Memory = Annotated[int, Option(envvar="STILLHASH_SERVE_MEMORY_MIB", min=64, metavar="MIB", help=MEMORY_HELP)]
AddressAsJson = Annotated[bool, Option("--json", help="Print the address as one JSON object, as soon as it listens.")]


@app.command(rich_help_panel="Collections: serving")
def serve(
    paths: Annotated[
        list[Path] | None,
        Argument(metavar="PATH...", help="Folders of collections.", autocompletion=complete_collections),
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = PORT,
    keys: KeyFile = None,
    session_idle: Annotated[float, Option(min=1, metavar="MINUTES", help=IDLE_HELP)] = 60.0,
    tls_cert: Certificate = None,
    tls_key: CertificateKey = None,
    read_only: Annotated[bool, Option("--read-only", help="Search only; another process may write.")] = False,
    standby: Annotated[bool, Option("--standby", help=STANDBY_HELP)] = False,
    encoder: Annotated[str | None, Option(metavar="NAME", help=IMAGE_ENCODER_HELP)] = None,
    images: Annotated[Path | None, Option(metavar="FOLDER", help=IMAGES_HELP)] = None,
    snapshots: Snapshots = None,
    collections_folder: CollectionsFolder = None,
    max_collections: Annotated[int, Option(min=1, metavar="N", help="With such a folder: collections in all.")] = 32,
    device: Device = "cpu",
    cluster: Annotated[str | None, Option(metavar="ADDRESS", help=CLUSTER_HELP)] = None,
    shards: Annotated[int, Option(min=1, help="With --cluster: number of shards.")] = 4,
    replicas: Annotated[int, Option(min=1, help="With --cluster: replicas of each shard.")] = 1,
    storage: Annotated[str | None, Option(metavar="URL", help=STORAGE_HELP)] = None,
    rate: RequestRate = None,
    queue: Annotated[int, Option(min=1, metavar="N", help="Writes that may wait in the queue.")] = 64,
    timeout: Annotated[float, Option(min=0.1, metavar="SECONDS", help="How long a request may wait.")] = 30.0,
    max_body_mib: MaxBody = 64,
    max_upload_mib: Annotated[int, Option(min=1, metavar="MIB", help="Largest upload of files to import.")] = 1024,
    max_answer_mib: Annotated[int, Option(min=1, metavar="MIB", help="Largest answer.")] = 16,
    memory_mib: Memory = 1024,
    max_connections: Annotated[int, Option(min=8, metavar="N", help="Connections at a time.")] = 1000,
    log: LogFormat = "",
    as_json: AddressAsJson = False,
) -> None:
    """Serve collections over HTTP: an API under /v1, and a page that shows them learn.

    \b
    Examples:
      stillhash serve films
      stillhash serve films gallery --port 8080 --read-only
      stillhash serve films --device cuda
      stillhash serve films --host 0.0.0.0 --keys keys.json
      stillhash serve films --cluster 127.0.0.2:6379 --replicas 2
      stillhash serve films --cluster 127.0.0.2:6379 --standby --port 8001
    """
    from stillhash.encoders import open_query_encoder

    server = optional_module("server", "server")
    folders = {path.resolve().name: path for path in paths or ()}
    if not folders and collections_folder is None:
        raise InvalidInput("paths: expected a folder of a collection, or --collections-folder, got none")
    if collections_folder is not None and (read_only or cluster is not None):
        raise InvalidInput("collections-folder: expected neither --read-only nor --cluster with it, got one of them")
    if standby and (read_only or not folders):
        raise InvalidInput("standby: expected folders of collections with it, and not --read-only")
    if len(folders) < len(paths or ()):
        raise InvalidInput("paths: expected different folder names, since the server uses them as collection names")
    for name, folder in (("images", images), ("snapshots", snapshots), ("collections-folder", collections_folder)):
        if folder is not None and not folder.is_dir():
            raise InvalidInput(f"{name}: expected an existing folder, got {str(folder)!r}")
    settings = server.Settings(
        host=host,
        port=port,
        keys=server.load_keys(keys),
        rate_limit=rate_limit(server, host, rate),
        max_queued_writes=queue,
        timeout=timeout,
        max_body_bytes=max_body_mib << 20,
        max_upload_bytes=max_upload_mib << 20,
        max_answer_bytes=max_answer_mib << 20,
        max_memory_bytes=memory_mib << 20,
        max_connections=max_connections,
        images=images and images.resolve(),
        snapshots=snapshots and snapshots.resolve(),
        collections_folder=collections_folder and collections_folder.resolve(),
        max_collections=max_collections,
        device=device,
        session_idle=60 * session_idle,
        tls_cert=tls_cert,
        tls_key=tls_key,
    )
    settings.validate()
    if storage is not None and (cluster is None or len(folders) > 1):
        raise InvalidInput("storage: expected --cluster with it, and one collection")
    with ExitStack() as stack:
        stack.enter_context(log_requests(server, log))
        collections: dict[str, stillhash.Collection] = {}
        for name, path in folders.items():
            how: dict[str, Any] = {"device": "cpu" if cluster is not None else device}
            how["wait"] = math.inf if standby else 0.0
            collections[name] = stack.enter_context(stillhash.open(path, read_only=read_only, **how))
        clusters = {}
        if cluster is not None:
            options: dict[str, Any] = {"shards": shards, "replicas": replicas, "address": cluster, "device": device}
            options["writer"] = writer_url(settings)
            for name, collection in collections.items():
                target = storage or str(folders[name].resolve().with_name(f"{name}.shards"))
                clusters[name] = stack.enter_context(closing(publish_to_cluster(collection, target, **options)))
        announcement = functools.partial(announce, as_json=as_json)
        encoders = _query_encoders(collections, encoder)
        server.serve(collections, settings, announcement, encoders, clusters, open_query_encoder)


def publish_to_cluster(
    collection: "stillhash.Collection",
    storage: str,
    *,
    shards: int,
    replicas: int,
    address: str,
    device: str,
    writer: str,
) -> Any:
    """Start the shards of a collection, and publish its commits to them from now on."""
    cluster = optional_module("cluster", "cluster")
    options = {"storage": storage, "device": device, "detached": True}
    index = cluster.ClusterIndex(collection.bits, shards, replicas, address, **options)
    try:
        publisher = optional_module("cluster.publisher", "cluster").Publisher(collection, index, writer=writer)
    except BaseException:
        index.close()
        raise
    publisher.start()
    return optional_module("cluster.served", "cluster").ServedCluster(index, publisher)


def writer_url(settings: Any) -> str:
    """Return where fronts send requests that change the collection; nowhere if the port is not known yet."""
    scheme = "http" if settings.tls_cert is None else "https"
    host = socket.gethostname() if settings.host in ("0.0.0.0", "::") else settings.host
    return f"{scheme}://{host}:{settings.port}" if settings.port else ""


def rate_limit(server: Any, host: str, rate: float | None) -> float:
    """Return the requests a second of one client: as chosen, or by whether other machines can reach the server."""
    return rate if rate is not None else 0.0 if server.is_loopback(host) else REMOTE_RATE_LIMIT


def log_requests(server: Any, log: str) -> AbstractContextManager[None]:
    """Log to stderr in a format, "" for the usual one, until the block ends."""
    if log not in ("", *LOG_FORMATS):
        raise InvalidInput(f"log: expected json, text or off, got {log!r}")
    default_format = "text" if sys.stderr.isatty() else "json"
    log_format = log if log in ("json", "text") else default_format
    logging: AbstractContextManager[None] = server.log_to_stderr("warning" if log == "off" else "info", log_format)
    return logging


def _query_encoders(collections: "dict[str, stillhash.Collection]", encoder: str | None) -> dict[str, Any]:
    """Open the query encoders of collections that have one; warn about those that cannot be opened."""
    from stillhash.encoders import open_query_encoder

    encoders = {}
    for name, collection in collections.items():
        if encoder is not None or collection.encoder is not None:
            try:
                encoders[name] = open_query_encoder(collection, encoder)
            except StillhashError as error:
                note(f"{name} is served without search by image or text: {error}", color="yellow")
    return encoders


def announce(address: str, as_json: bool = False) -> None:
    """Print the address of the page, as soon as it can be opened."""
    page = typer.style(address, bold=True, underline=True)
    answer({"url": address}, as_json, f"The page is at {page}; Ctrl-C stops the server.")
    sys.stdout.flush()


@app.command(rich_help_panel="Collections: serving")
def mcp(
    path: CollectionPath,
    http: Annotated[bool, Option("--http", help=HTTP_HELP)] = False,
    port: Annotated[int, Option(min=0, max=65535, help="With --http; 0 picks a free port.")] = MCP_PORT,
    allow_feedback: Annotated[bool, Option("--allow-feedback", help=ALLOW_FEEDBACK_HELP)] = False,
    encoder: Annotated[str | None, Option(metavar="NAME", help=TEXT_ENCODER_HELP)] = None,
    as_json: Annotated[bool, Option("--json", help=ADDRESS_HELP)] = False,
) -> None:
    """Serve a collection as tools for assistants, by the Model Context Protocol.

    \b
    Examples:
      stillhash mcp films
      stillhash mcp films --http --port 8765
      stillhash mcp films --allow-feedback
    """
    integration = optional_module("integrations.mcp", "mcp")
    with stillhash.open(path, read_only=not allow_feedback) as collection:
        try:
            text_encoder = integration.open_text_encoder(collection, encoder)
        except StillhashError as error:
            if encoder is not None:
                raise
            text_encoder = None
            note(f"served without vectors of texts: {error}", color="yellow")
        options = {"encoder": text_encoder, "allow_feedback": allow_feedback}
        with integration.collection_server(collection, path.resolve().name, **options) as server:
            if http:
                integration.serve_http(server, port, functools.partial(announce_tools, as_json=as_json))
            else:
                integration.serve_stdio(server)


def announce_tools(address: str, as_json: bool = False) -> None:
    """Print the address of the tools, as soon as they can be called."""
    answer({"url": address}, as_json, f"The tools are at {address}; Ctrl-C stops the server.")
    sys.stdout.flush()
