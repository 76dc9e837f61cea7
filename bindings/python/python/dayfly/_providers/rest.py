"""A client for JSON APIs over HTTPS, by the library ``requests``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .provider import WORDS, ProviderError

#: Seconds to connect, and to wait for a response.
WITHIN = (5, 20)
#: Error codes of transient failures to which Google gives the status 403.
BUSY = ("rateLimitExceeded", "userRateLimitExceeded")


@dataclass(frozen=True)
class Response:
    """The response to a request."""

    status: int
    body: dict[str, Any]
    #: The error, as a code and as a message.
    code: str = ""
    words: str = ""

    @property
    def is_granted(self) -> bool:
        """Whether the request was accepted."""
        return self.status < 300

    @property
    def is_busy(self) -> bool:
        """Whether the failure is transient."""
        return self.status in (408, 429) or self.status >= 500 or self.code in BUSY


class Rest:
    """A client for an API below an address. A function, which may fail, returns the authorization headers."""

    def __init__(self, base: str, signed: Callable[[], dict[str, str]], failure: type[Exception]) -> None:
        self._requests: Any = importlib.import_module("requests")
        self._session = self._requests.Session()
        self._base = base.rstrip("/")
        self._signed = signed
        self._failure = failure

    def ask(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: dict[str, Any] | None = None
    ) -> Response:
        """Returns the response to a request. Raises if there is none: the request may have had an effect then."""
        try:
            response = self._session.request(
                method,
                f"{self._base}/{path}",
                params=query,
                json=body,
                headers=self._signed(),
                timeout=WITHIN,
                allow_redirects=False,
            )
            text = response.text
        except (self._requests.RequestException, self._failure) as error:
            raise ProviderError(f"{self._base} cannot be asked: {error}"[:WORDS]) from None
        try:
            content = response.json() if text else {}
        except ValueError:
            content = None
        if not isinstance(content, dict) or not (response.status_code < 300 or isinstance(content.get("error"), dict)):
            # A proxy responded instead of the API.
            status = response.status_code if response.status_code >= 400 else 502
            return Response(status, {}, "", f"{self._base} responded {response.status_code}: {text}"[:WORDS])
        fault = content.get("error", {}) if response.status_code >= 300 else {}
        code = str(_reason(fault))
        words = f"{fault.get('message', '')} ({code or response.status_code})"[:WORDS] if fault else ""
        return Response(response.status_code, content, code, words)

    def must(self, method: str, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Returns the body of the response. Raises `ProviderError` if the request is not accepted."""
        response = self.ask(method, path, query)
        if not response.is_granted:
            raise ProviderError(response.words)
        return response.body


def _reason(fault: dict[str, Any]) -> Any:
    """Returns the code of an error: a name in Azure's field ``code``, or in Google's field ``reason``."""
    for one in fault.get("errors") or ():
        if isinstance(one, dict) and "reason" in one:
            return one["reason"]
    return fault.get("code", "")
