"""The health check of a container: exits 0 where a URL of its own answers 200, else says why not.

python health.py PORT PATH
"""

import http.client
import sys

TIMEOUT_SECONDS = 5.0
SHOWN_BYTES = 500


def main(port: int, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read(SHOWN_BYTES).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        sys.exit(f"port {port} does not answer: {error}")
    finally:
        connection.close()
    if answer.status != http.client.OK:
        sys.exit(f"{path}: {answer.status} {text}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
