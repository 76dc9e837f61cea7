"""The API is what its description says: Schemathesis asks all of it what nobody thought of."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from harness.daemons import Daemon
from harness.programs import ROOT, clean_environment, run

#: What is not asked: sockets, answers that come as they happen, files of the page, redirections of browsers; and what
#: waits on purpose: a gang that finds no room is granted when there is some, which may take longer than a request of
#: these does.
LEFT_OUT = r"/(connect|events|gangs|metrics|outcomes|outcome)$|/allowances/|/page|^/$|/session/(login|callback)$"
SETTINGS = """
[checks.positive_data_acceptance]
# A lease that is longer than a site grants is no mistake in its form.
expected-statuses = ["2xx", "401", "403", "404", "409", "422", "429", "503"]

[checks.negative_data_rejection]
expected-statuses = ["400", "401", "403", "404", "405", "406", "409", "413", "415", "422", "429"]

# A list of its values stands for an object within the body, too, which does no harm.
[[operations]]
include-path = "/v1/tenants/{name}"
checks.negative_data_rejection.enabled = false

# Bytes have one hash, which no form tells; and none at all are a content, too.
[[operations]]
include-path-regex = "^/v1/contents"
checks.positive_data_acceptance.enabled = false
checks.negative_data_rejection.enabled = false

# That there is one of three, cron syntax, which step stands before which, and how long reports are, are said in words.
[[operations]]
include-path-regex = "/v1/(tasks|triggers|flows|session|queries/.id.)$"
checks.positive_data_acceptance.enabled = false

# What a node has, allows, and has room for is no matter of form.
[[operations]]
include-path-regex = "/v1/(leases|gangs|allowances|leases/.id./renew)$"
checks.positive_data_acceptance.enabled = false
checks.not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "503"]
"""


@pytest.mark.skipif(importlib.util.find_spec("schemathesis") is None, reason="Schemathesis is not installed")
@pytest.mark.timeout(400)
def test_responses_match_the_openapi_document(up: Daemon, tmp_path: Path) -> None:
    connection = up.connection
    (tmp_path / "ca.pem").write_text(connection["ca_pem"])
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    arguments = [
        "--url",
        connection["manager"],
        "--tls-verify",
        "ca.pem",
        "-H",
        f"Authorization: Bearer {connection['token']}",
    ]
    # A handshake that takes too long on a busy machine is no answer of the API's.
    limits = ["--seed", "7", "--generation-database", "none", "--request-retries", "3"]
    # Half a pair of UTF-16 is no text.
    limits += ["--phases", "examples,coverage,fuzzing", "--max-examples", "25", "--generation-codec", "utf-8"]
    done = run(
        Path(sys.executable).with_name("schemathesis"),
        "--config-file",
        tmp_path / "schemathesis.toml",
        "run",
        ROOT / "docs" / "reference" / "openapi.json",
        *arguments,
        *limits,
        "--exclude-path-regex",
        LEFT_OUT,
        "--continue-on-failure",
        "--no-color",
        timeout=380,
        check=False,
        cwd=tmp_path,
        env=clean_environment(),
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    assert up.alive
    # Which it really did ask.
    asked = json.loads((ROOT / "docs" / "reference" / "openapi.json").read_text())["paths"]
    assert len(asked) > 30
    assert "Coverage" in done.stdout
    assert "Fuzzing" in done.stdout
