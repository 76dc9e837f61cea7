"""GPUs, counted: which ones a worker sees, and that nobody else does at the same time.

The names are a node's own words, so that it is seen without a GPU who is given which.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import dayfly
import pytest
from harness.compilers import compile_source
from harness.daemons import Daemon, free_port
from harness.endpoints import endpoints_of, manager_alone
from harness.programs import run

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def seen() -> tuple[str, str]:
    """The GPUs that a worker sees, and those that a program sees that it starts."""
    program = subprocess.run(["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"], capture_output=True, text=True, check=True)
    return os.environ["CUDA_VISIBLE_DEVICES"], program.stdout.strip()


def test_worker_sees_only_its_gpus(start: Callable[..., Daemon]) -> None:
    site = start("up", "--listen", "127.0.0.1:0", "--gpus", "0,GPU-beef,2,3")
    with dayfly.connect(site.state) as client:
        assert [node["capacity"]["gpus"] for node in client.nodes()] == [4]
        with client.lease(2, mode="warm", gpus=1) as one, client.lease(1, mode="warm", gpus=2) as two:
            of_each = {one.options(worker=worker).call(seen) for worker in range(2)}
            assert of_each == {("0", "0"), ("GPU-beef", "GPU-beef")}
            assert two.call(seen) == ("2,3", "2,3")
            # A worker that takes the place of another has its GPUs.
            with pytest.raises(dayfly.WorkerDied):
                two.call(os._exit, 1)
            assert two.call(seen) == ("2,3", "2,3")
            with client.lease(1, mode="warm") as none:
                assert none.call(seen) == ("", "")
            with pytest.raises(dayfly.CapacityError, match="1 GPUs"):
                client.lease(1, mode="warm", gpus=1)
        with pytest.raises(dayfly.Error, match=r"the largest: .* 4 GPUs") as refused:
            client.lease(1, mode="warm", gpus=5)
        assert refused.value.code == "too_large"
        with pytest.raises(dayfly.Error, match="isolated workers see no GPUs"):
            client.lease(1, mode="warm", gpus=1, sandbox="isolated")
        with client.gang(4, gpus=1, mode="warm") as gang:
            assert sorted(gang.rank(rank).call(seen)[0] for rank in range(4)) == ["0", "2", "3", "GPU-beef"]
    assert (
        "4 of 4 free"
        in subprocess.run(
            ["dayfly", "status"], env=site.client_environment(), capture_output=True, text=True, check=True
        ).stdout
    )


def test_node_uses_the_batch_systems_gpus(start: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
    site = start("up", "--listen", "127.0.0.1:0")
    with dayfly.connect(site.state) as client, client.lease(1, mode="warm", gpus=1) as lease:
        assert lease.call(seen) == ("5", "5")
    refused = subprocess.run(["dayfly", "up", "--gpus", "1,1"], check=False, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "named twice" in refused.stderr


FUNCTION = r"""
#include <stdlib.h>
#include <string.h>
#include "dayfly_function.h"

DFLY_EXPORT uint32_t gpus(void *in, uint32_t size, void *out) {
    const char *seen = getenv("CUDA_VISIBLE_DEVICES");
    (void)in, (void)size;
    memcpy(out, seen ? seen : "unset", strlen(seen ? seen : "unset"));
    return (uint32_t)strlen(seen ? seen : "unset");
}
"""

#: What each worker of a lease sees, a line for each.
PROGRAM = r"""
#include <cstdio>
#include <dayfly/dayfly.hpp>

int main(int, char **argv) {
    dayfly::client client;
    dayfly::lease_options options;
    options.mode = dayfly::mode::warm;
    options.workers = 2;
    options.gpus_per_worker = 2;
    dayfly::lease lease = client.lease(options);
    dfly_code code = lease.load_library(argv[1]);
    for (std::uint32_t worker = 0; worker < 2; worker++) {
        dayfly::channel channel(lease, worker);
        dayfly::function gpus = channel.load(code, "gpus", dayfly::form::plain);
        char seen[64];
        std::size_t length = channel.call(gpus, "", 0, seen, sizeof seen);
        std::printf("%.*s\n", static_cast<int>(length), seen);
    }
}
"""


def test_native_program_leases_gpus(start: Callable[..., Daemon], tmp_path: Path) -> None:
    for name, text in {"gpus.c": FUNCTION, "asks.cpp": PROGRAM}.items():
        (tmp_path / name).write_text(text)
    library = compile_source(tmp_path / "gpus.c", tmp_path / "libgpus.so")
    asks = compile_source(tmp_path / "asks.cpp", tmp_path / "asks")
    site = start("up", "--listen", "127.0.0.1:0", "--gpus", "0,1,2,3")
    assert run(asks, library, env=site.client_environment()).stdout.split() == ["0,1", "2,3"]


def hold(directory: str, seconds: float) -> str:
    """Fails if another task has the same GPU at the same time."""
    gpu = os.environ["CUDA_VISIBLE_DEVICES"]
    mine = Path(directory, gpu)
    os.close(os.open(mine, os.O_CREAT | os.O_EXCL))
    time.sleep(seconds)
    mine.unlink()
    return gpu


def test_concurrent_tasks_have_different_gpus(state: Path, tmp_path: Path) -> None:
    with (
        manager_alone(state / "manager", free_port()) as manager,
        endpoints_of(manager, state / "home") as endpoint,
        dayfly.connect(config=manager.state) as client,
    ):
        here = endpoint("--workers-per-node", "4", "--gpus-per-node", "2", start=False)
        configuration = here.directory / "endpoint.toml"
        assert "gpus_per_node = 2" in configuration.read_text()
        configuration.write_text(configuration.read_text().replace("arguments = []", 'arguments = ["--gpus", "0,1"]'))
        here.start()
        function = client.register(hold, gpus=1)
        assert function.status["resources"]["gpus"] == 1
        batch = client.map(function, [str(tmp_path)] * 20, [0.02] * 20, endpoint="here")
        assert set(batch.results(60)) == {"0", "1"}
        assert client.batch(endpoint="here").submit(seen).result(30) == ("", "")
        both = client.batch(endpoint="here", gpus=2).submit(hold, str(tmp_path), 0.01)
        assert both.result(30) == "0,1"
        with pytest.raises(dayfly.Error, match="1 workers of 1 cores and 3 GPUs") as refused:
            client.batch(endpoint="here", gpus=3).submit(abs, 1).result(30)
        assert refused.value.code == "too_large"
