"""Logging in with an institution's identity provider: a real one, over TLS; a program plays the browser's part."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import subprocess
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import identity
from harness.daemons import Daemon
from harness.identity import Browser, Provider
from harness.leaks import die_with_parent, wait_until
from harness.programs import clean_environment, program, run

pytestmark = pytest.mark.skipif(identity.unavailable() is not None, reason=str(identity.unavailable()))

PEOPLE = {
    "ada": {
        "preferred_username": "ada",
        "groups": ["physics", "astro"],
        "email": "ada@uni.example",
        "email_verified": True,
    },
    "olga": {"preferred_username": "olga", "groups": ["staff"]},
    "mallory": {
        "preferred_username": "mallory",
        "groups": ["elsewhere"],
        "email": "m@uni.example",
        "email_verified": False,
    },
    "nora": {"preferred_username": "nora", "groups": ["nowhere"]},
}
RULES = [
    {"claim": "groups", "value": "astro", "tenant": "astro"},
    {"claim": "groups", "value": "staff", "tenant": "default", "role": "operator"},
    {"claim": "groups", "value": "nowhere", "tenant": "missing"},
    {"claim": "email", "value": "*@uni.example", "tenant": "astro"},
]


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Provider]:
    provider = Provider(tmp_path, PEOPLE)
    yield provider
    provider.stop()


@pytest.fixture
def site(start: Callable[..., Daemon], provider: Provider, tmp_path: Path) -> Daemon:
    """A manager whose people log in with the provider."""
    file = tmp_path / "oidc.json"
    scopes = ["profile", "email", "groups"]
    site = {"issuer": provider.issuer, "client_id": "dayfly", "scopes": scopes, "ca_file": provider.ca.name}
    file.write_text(json.dumps(site | {"valid_for_s": 3600, "rules": RULES}))
    manager = start("manager", "--listen", "127.0.0.1:0", "--oidc", str(file))
    manager.cli("tenant", "set", "astro", "--workers", "4")
    return manager


class Login:
    """``dayfly login`` as a person sees it."""

    def __init__(self, site: Daemon, *args: str, home: Path | None = None) -> None:
        environment = clean_environment(DAYFLY_MANAGER=str(site.state / "login.json"))
        if home:
            environment["XDG_STATE_HOME"] = str(home)
        self.process = subprocess.Popen(
            [program(), "login", "--json", *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            preexec_fn=die_with_parent,  # noqa: PLW1509 (one call, loaded before)
        )

    def address(self) -> str:
        """The one that it asks to be opened."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            found = re.search(r"https://\S+", line)
            if found:
                return found[0]
        raise AssertionError("it showed no address")

    def end(self) -> tuple[int, dict[str, Any]]:
        """Its exit status, and what it said: the answer, or the error."""
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, json.loads(out or err.strip().splitlines()[-1])


def logged_in(
    site: Daemon, provider: Provider, person: str, *args: str, home: Path | None = None
) -> tuple[int, dict[str, Any]]:
    login = Login(site, *args, home=home)
    browser = Browser(provider)
    browser.open(login.address())
    if "--browser" not in args:
        # The code is in the address. The first page sends itself; the second has it compared with the terminal's.
        browser.submit()
        browser.submit()
    browser.log_in(person)
    return login.end()


def token_of(site: Daemon, provider: Provider, person: str, client: str = "dayfly") -> str:
    """An ID token, as some other program of theirs would get it."""
    verifier, back = "v" * 50, "http://127.0.0.1:1/callback"
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
    query = {
        "response_type": "code",
        "client_id": client,
        "redirect_uri": back,
        "scope": "openid profile email groups",
        "code_challenge": challenge,
        "code_challenge_method": "S256",
    }
    browser = Browser(provider)
    browser.open(f"{provider.issuer}/auth?{urllib.parse.urlencode(query)}")
    browser.submit(login=person, password="any")
    # Nobody listens there: what counts is where it was sent.
    with pytest.raises(urllib.error.URLError):
        browser.submit()
    code = urllib.parse.parse_qs(urllib.parse.urlsplit(browser.sent).query)["code"][0]
    form = {"grant_type": "authorization_code", "client_id": client, "redirect_uri": back, "code": code}
    browser.open(f"{provider.issuer}/token", form | {"code_verifier": verifier})
    token: str = json.loads(browser.text)["id_token"]
    return token


def show(site: Daemon, token: str, directory: Path) -> tuple[int, dict[str, Any]]:
    file = directory / "id-token"
    file.write_text(token)
    return Login(site, "--id-token", str(file), "--output", str(directory / "shown.json")).end()


def test_device_login_serves_every_command(site: Daemon, provider: Provider, tmp_path: Path) -> None:
    home = tmp_path / "home"
    status, said = logged_in(site, provider, "ada", home=home)
    assert status == 0, said
    assert (said["token"]["tenant"], said["token"]["role"]) == ("astro", "user")
    own = clean_environment(XDG_STATE_HOME=str(home))
    assert (home / "dayfly" / "connection.json").stat().st_mode & 0o777 == 0o600
    tenants = json.loads(run(program(), "tenant", "list", "--json", env=own).stdout)
    assert [tenant["name"] for tenant in tenants] == ["astro"]
    refused = run(program(), "tenant", "set", "more", "--json", env=own, check=False)
    assert json.loads(refused.stderr)["error"]["code"] == "forbidden"
    # An administrator sees it, and can end it.
    token = next(token for token in site.cli("token", "list") if token["name"].startswith("login.ada."))
    assert site.cli("audit")[-1]["action"] == "token.login"
    site.cli("token", "revoke", token["id"])
    refused = run(program(), "status", "--json", env=own, check=False)
    assert json.loads(refused.stderr)["error"]["code"] == "unauthorized"
    # And who was logged in there logs in there again.
    status, said = logged_in(site, provider, "ada", home=home)
    assert status == 0, said
    run(program(), "status", env=own)


def test_browser_login_works_on_the_same_machine(site: Daemon, provider: Provider, tmp_path: Path) -> None:
    output = tmp_path / "olga.json"
    status, said = logged_in(site, provider, "olga", "--browser", "--output", str(output))
    assert status == 0, said
    assert (said["token"]["tenant"], said["token"]["role"]) == ("default", "operator")
    run(program(), "status", env=clean_environment(DAYFLY_MANAGER=str(output)))


@pytest.mark.parametrize(
    ("person", "why"),
    [("mallory", "no rule of this site lets you in"), ("nora", "tenant `missing`")],
)
def test_user_without_matching_rule_gets_no_token(
    site: Daemon, provider: Provider, tmp_path: Path, person: str, why: str
) -> None:
    before = len(site.cli("token", "list"))
    status, said = show(site, token_of(site, provider, person), tmp_path)
    assert (status, said["error"]["code"]) == (4, "forbidden")
    assert why in said["error"]["message"]
    assert len(site.cli("token", "list")) == before


def test_invalid_id_token_is_refused(site: Daemon, provider: Provider, tmp_path: Path) -> None:
    good = token_of(site, provider, "ada")
    assert show(site, good, tmp_path)[0] == 0
    head, claims, signature = good.split(".")

    def encoded(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    def decoded(text: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(text + "=="))
        return found

    changed = encoded(decoded(claims) | {"groups": ["staff"]})
    # The provider's public key as a secret, which every reader knows.
    keys = Browser(provider)
    keys.open(f"{provider.issuer}/jwks")
    public = json.dumps(json.loads(keys.text)["keys"][0]).encode()
    symmetric = f"{encoded({'alg': 'HS256', 'kid': 'first'})}.{changed}"
    mac = base64.urlsafe_b64encode(hmac.new(public, symmetric.encode(), "sha256").digest()).decode().rstrip("=")
    forged = {
        "other claims": f"{head}.{changed}.{signature}",
        "no signature": f"{encoded({'alg': 'none'})}.{changed}.",
        "the public key as a secret": f"{symmetric}.{mac}",
        "for another client": token_of(site, provider, "ada", client="another"),
        "nonsense": "x.y.z",
        "nothing": "",
    }
    for what, token in forged.items():
        status, said = show(site, token, tmp_path)
        assert (status, said["error"]["code"]) == (4, "unauthorized"), (what, said)
    # A provider that has the same name and another key, as whoever had taken its address would.
    provider.stop()
    provider.start()
    status, said = show(site, token_of(site, provider, "ada"), tmp_path)
    assert (status, said["error"]["code"]) == (4, "unauthorized"), said


def test_manager_follows_the_providers_key_changes(site: Daemon, provider: Provider, tmp_path: Path) -> None:
    old = token_of(site, provider, "ada")
    provider.stop()
    status, said = show(site, old, tmp_path)
    assert (status, said["error"]["code"]) == (3, "unreachable"), said
    # Nobody else is kept from anything.
    site.cli("status")
    provider.start(kid="second", alg="ES256")
    new = token_of(site, provider, "ada")
    # It does not ask for keys at every token that somebody sends.
    wait_until(lambda: show(site, new, tmp_path)[0] == 0, "the login with the new key", 15)
    assert show(site, old, tmp_path)[0] == 4


def test_manager_without_provider_refuses_login(start: Callable[..., Daemon], tmp_path: Path) -> None:
    manager = start("manager", "--listen", "127.0.0.1:0")
    refused = run(program(), "login", "--json", env=manager.client_environment(), check=False)
    said = json.loads(refused.stderr)["error"]
    assert said["code"] == "not_found"
    assert "no identity provider" in said["message"]
