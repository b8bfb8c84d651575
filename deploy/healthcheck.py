"""Exit with 0 if the server in this container answers, else with 1. Its address: STILLHASH_HEALTH_URL."""

import os
import ssl
import sys
import urllib.request

URL = os.environ.get("STILLHASH_HEALTH_URL", "http://127.0.0.1:8000/v1/health")
TIMEOUT = 5.0  # seconds


def main() -> int:
    """Ask for the health of the server."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # its certificate names another host than this
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(URL, timeout=TIMEOUT) as response:
            return 0 if response.status == 200 else 1
    except OSError as error:
        print(f"{URL}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
