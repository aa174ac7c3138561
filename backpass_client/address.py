"""The address of a service, the key for it, and the certificates to trust, checked before the first request."""

from __future__ import annotations

import re
import ssl

import httpx

from backpass_client.errors import BackpassError

__all__ = ["advice", "authorization", "checked_url", "trusted", "will_fail_again"]

SECRET = re.compile(r"[!-~]+")

ADVICE = {
    "CERTIFICATE_VERIFY_FAILED": "; name the file with the certificate of the service, or of its issuer, as verify=...",
    "WRONG_VERSION_NUMBER": "; does the service speak http instead of https?",
}
"""Name of an error of TLS -> advice."""


def checked_url(url: str) -> str:
    """The address, if requests can be sent there. Raises BackpassError."""
    example = "expected an address such as http://127.0.0.1:8080"
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        shown = "the text" if "@" in str(url) else repr(url)  # it may have a password
        raise BackpassError(f"{shown} is no address of a service: {error}; {example}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        shown = str(parsed.copy_with(userinfo=b""))
        raise BackpassError(f"{shown!r} is no address of a service: {example}")
    if parsed.path.rstrip("/").endswith("/v1"):
        raise BackpassError(f"{str(parsed.copy_with(userinfo=b''))!r}: give the address without /v1")
    return url


def authorization(key: str | None) -> dict[str, str]:
    """The header with the key; empty without one. Raises BackpassError, which does not show the key."""
    secret = (key or "").strip()
    if not secret:
        return {}
    if SECRET.fullmatch(secret) is None:
        raise BackpassError(
            "the API key has a character that no key has, such as a space or a line break: copy it again"
        )
    return {"authorization": f"Bearer {secret}"}


def trusted(url: str, verify: str | None) -> bool | ssl.SSLContext:
    """The argument `verify` of httpx: by default the certificates of the system. Raises BackpassError."""
    if verify is None:  # loading them takes 50 ms, and http needs none
        return httpx.URL(url).scheme == "https"
    try:
        return ssl.create_default_context(cafile=verify)
    except (OSError, ssl.SSLError) as error:
        raise BackpassError(f"verify={verify!r}: no certificates can be read from this file: {error}") from error


def advice(error: Exception) -> str:
    """The remedy of an error of TLS, as the end of a sentence; empty for other errors."""
    return next((text for name, text in ADVICE.items() if name in str(error)), "")


def will_fail_again(error: httpx.TransportError) -> bool:
    """Whether the request fails in the same way however often it is sent: TLS, or a request that cannot be written."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    return isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError) or (
        isinstance(error, httpx.ConnectError) and cause is not None
    )
