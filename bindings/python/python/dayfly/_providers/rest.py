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
class Answer:
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
    ) -> Answer:
        """Returns the response to a request. Raises if there is none: the request may have had an effect then."""
        try:
            answer = self._session.request(
                method,
                f"{self._base}/{path}",
                params=query,
                json=body,
                headers=self._signed(),
                timeout=WITHIN,
                allow_redirects=False,
            )
            text = answer.text
        except (self._requests.RequestException, self._failure) as error:
            raise ProviderError(f"{self._base} cannot be asked: {error}"[:WORDS]) from None
        try:
            said = answer.json() if text else {}
        except ValueError:
            said = None
        if not isinstance(said, dict) or not (answer.status_code < 300 or isinstance(said.get("error"), dict)):
            # A proxy responded instead of the API.
            status = answer.status_code if answer.status_code >= 400 else 502
            return Answer(status, {}, "", f"{self._base} said {answer.status_code}: {text}"[:WORDS])
        fault = said.get("error", {}) if answer.status_code >= 300 else {}
        code = str(_reason(fault))
        words = f"{fault.get('message', '')} ({code or answer.status_code})"[:WORDS] if fault else ""
        return Answer(answer.status_code, said, code, words)

    def must(self, method: str, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Returns the body of the response. Raises `ProviderError` if the request is not accepted."""
        answer = self.ask(method, path, query)
        if not answer.is_granted:
            raise ProviderError(answer.words)
        return answer.body


def _reason(fault: dict[str, Any]) -> Any:
    """Returns the code of an error: a name in Azure's field ``code``, or in Google's field ``reason``."""
    for one in fault.get("errors") or ():
        if isinstance(one, dict) and "reason" in one:
            return one["reason"]
    return fault.get("code", "")
