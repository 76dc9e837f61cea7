"""What an endpoint starts to have blocks of nodes: with a real Slurm, and with fakes of others at their commands."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.daemons import private_directory
from harness.leaks import descendants, wait_until
from harness.programs import run
from harness.providers import STAYS, Provider
from harness.slurm import GRACE, Slurm, slurm_cluster, unavailable

pytest.importorskip("dayfly", reason="the package is not installed: make build")
pytestmark = pytest.mark.skipif(importlib.util.find_spec("parsl") is None, reason="Parsl is not installed")
needs_slurm = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with private_directory() as directory, slurm_cluster(Path(directory)) as slurm:
        yield slurm


@pytest.fixture
def slurm(cluster: Slurm) -> Iterator[Slurm]:
    yield cluster
    cluster.cancel_all()


def by_slurm(slurm: Slurm, directory: Path, partition: str = "idle", **options: Any) -> Provider:
    return Provider("slurm", directory, slurm.environment, partition=partition, **options)


# Slurm itself


@needs_slurm
def test_job_runs_once_per_node_with_rank(slurm: Slurm, tmp_path: Path) -> None:
    with by_slurm(slurm, tmp_path) as provider:
        # With all that shells look at: it is written to one script by another.
        command = r"""printf '%s\n' "rank $DAYFLY_RANK of `echo two` on $SLURMD_NODENAME: $((1 + 1)) \\ \$x" '$y\n' """
        job = provider.job(command, nodes=2)
        assert provider.wait_for(job, "ended") == "COMPLETED"
        for rank in range(2):
            variables = os.environ | {"DAYFLY_RANK": str(rank), "SLURMD_NODENAME": f"n{rank}"}
            lines = run("sh", "-c", command, env=variables).stdout.splitlines()
            assert lines[0] == rf"rank {rank} of two on n{rank}: 2 \ $x"
            assert provider.output().count(lines[0]) == 1
        assert provider.output().count(lines[1]) == 2


@needs_slurm
def test_exit_status_of_a_job_is_reported(slurm: Slurm, tmp_path: Path) -> None:
    with by_slurm(slurm, tmp_path) as provider:
        assert provider.wait_for(provider.job("exit 3"), "ended") == "FAILED exit 3"


@needs_slurm
def test_refusal_quotes_slurm(slurm: Slurm, tmp_path: Path) -> None:
    with by_slurm(slurm, tmp_path, "nowhere") as provider:
        refused = provider.submit()
        assert list(refused) == ["refused"]
        assert refused["refused"].startswith("sbatch: error: invalid partition specified: nowhere")
    with by_slurm(slurm, tmp_path, "short") as provider:
        refused = provider.submit(walltime_s=121)
        assert "Requested time limit is invalid" in refused["refused"]
        # What is refused costs the next nothing.
        assert provider.wait_for(provider.job("true", walltime_s=120), "ended") == "COMPLETED"


@needs_slurm
def test_waiting_job_gives_its_reason(slurm: Slurm, tmp_path: Path) -> None:
    with by_slurm(slurm, tmp_path) as provider:
        first = slurm.fill()
        slurm.wait_for(first, "RUNNING")
        job = provider.job(nodes=2)
        wait_until(lambda: provider.how(job) == ("pending", "Resources"), "it waits for nodes")
        slurm.cancel(first)
        assert provider.wait_for(job, "running") == ""
        assert provider.ask(cancel=[job]) == {"cancelled": [job]}


@needs_slurm
def test_cancelled_job_is_signalled_on_each_node(slurm: Slurm, tmp_path: Path) -> None:
    with by_slurm(slurm, tmp_path) as provider:
        job = provider.job(nodes=2)
        provider.wait_for_output("here 0", "here 1")
        assert provider.how(job) == ("running", "")
        assert provider.ask(cancel=[job]) == {"cancelled": [job]}
        provider.wait_for_output("told 0", "told 1")
        assert provider.wait_for(job, "ended") == "CANCELLED"
        # Once more is as good as once.
        assert provider.ask(cancel=[job, "4711"]) == {"cancelled": [job, "4711"]}


@needs_slurm
def test_preempted_job_is_signalled_at_once(slurm: Slurm, tmp_path: Path) -> None:
    with by_slurm(slurm, tmp_path) as provider:
        # It goes on, so it is there for its time of grace.
        text = "trap 'echo told $DAYFLY_RANK; trap - TERM' TERM; echo here; while :; do sleep 0.05; done"
        job = provider.job(text, nodes=2)
        wait_until(lambda: provider.output().count("here") == 2, "it runs", 30)
        better = slurm.fill()
        provider.wait_for_output("told 0", "told 1", timeout=GRACE)
        assert provider.how(job)[0] == "running"
        assert provider.ask(cancel=[job]) == {"cancelled": [job]}
        slurm.wait_for(better, "RUNNING")
        assert provider.how(job)[0] == "ended"


@needs_slurm
def test_preempted_job_that_ends_early_counts_as_preempted(slurm: Slurm, tmp_path: Path) -> None:
    with by_slurm(slurm, tmp_path) as provider:
        job = provider.job(nodes=2)
        provider.wait_for_output("here 0", "here 1")
        slurm.fill()
        assert provider.wait_for(job, "ended").startswith("PREEMPTED")
        provider.wait_for_output("told 0", "told 1")


@needs_slurm
def test_second_process_adopts_jobs_of_the_first(slurm: Slurm, tmp_path: Path) -> None:
    with by_slurm(slurm, tmp_path) as provider:
        job = provider.job(nodes=2)
        provider.wait_for_output("here 0", "here 1")
    with by_slurm(slurm, tmp_path) as provider:
        assert provider.how(job) == ("running", "")
        assert provider.how("4711") == ("ended", "")
        assert provider.ask(cancel=[job]) == {"cancelled": [job]}
        assert provider.wait_for(job, "ended") == "CANCELLED"


@needs_slurm
def test_unresponsive_controller_ends_no_jobs(slurm: Slurm, tmp_path: Path) -> None:
    with by_slurm(slurm, tmp_path) as provider, by_slurm(slurm, tmp_path, cmd_timeout=1) as hasty:
        job = provider.job()
        # By then it does not need the controller any more.
        provider.wait_for_output("here 0")
        slurm.pause()
        try:
            assert hasty.ask(status=[job]) == {"failed": "squeue did not end within 1 s"}
            # Nobody knows what became of it, so it is not refused.
            assert hasty.submit() == {"failed": "sbatch did not end within 1 s"}
        finally:
            slurm.go_on()

        # One that came through all the same is cancelled, or it would be a job that the endpoint does not know.
        def jobs() -> list[str]:
            hasty.ask(status=[])
            return slurm.ask("squeue", "--noheader", "--states=all", "--format=%T %j").splitlines()

        name = max(file.name for file in tmp_path.glob("block-1.*") if file.suffix[1:].isdigit())
        wait_until(lambda: f"CANCELLED {name}" in jobs(), "the other job is cancelled", 20)
        slurm.stop()
        try:
            assert "Unable to contact slurm controller" in provider.ask(status=[job])["failed"]
        finally:
            slurm.start_controller()
        wait_until(lambda: "jobs" in provider.ask(status=[job]), "the controller is back", 30)
        assert provider.how(job) == ("running", "")


@needs_slurm
def test_wrong_options_are_named(slurm: Slurm, tmp_path: Path) -> None:
    provider = by_slurm(slurm, tmp_path, color="blue")
    failed = provider.begin()["failed"]
    assert failed.startswith("unknown option color; there are account, ")
    assert "launcher" not in failed
    about = {"kind": "slurm", "directory": str(tmp_path)}
    for option, setting in [("nodes_per_block", "`nodes`"), ("walltime", "`walltime`"), ("max_blocks", "`max`")]:
        failed = provider.ask(**about, options={option: 1})["failed"]
        assert failed.startswith(f"option {option} is the endpoint's own")
        assert setting in failed
    assert 'argument "partition" (int)' in provider.ask(**about, options={"partition": 7})["failed"]
    assert "unknown kind 'abacus'; there are slurm, " in provider.ask(**about | {"kind": "abacus"})["failed"]
    assert "is not an absolute path" in provider.ask(**about | {"directory": "a b"})["failed"]
    # And it is ready for the right ones.
    assert provider.ask(**about)["ready"] == "slurm"
    provider.end()


@needs_slurm
def test_invalid_request_gets_a_response(slurm: Slurm, tmp_path: Path) -> None:
    with by_slurm(slurm, tmp_path) as provider:
        wrong = [
            '{"submit": {}}',
            '{"fly": 1}',
            "[]",
            "{",
            '{"status": "1"}',
            '{"cancel": ["1; rm"]}',
            '{"status": [1]}',
        ]
        for line in wrong:
            assert list(provider.say(line)) == ["failed"], line
        for about in [{"name": "a b"}, {"nodes": 0}, {"nodes": True}, {"walltime_s": -1}, {"walltime_s": "1h"}]:
            sound = {"name": "block-1", "command": "true", "nodes": 1, "walltime_s": 60}
            assert list(provider.ask(submit=sound | about)) == ["failed"], about
        assert provider.ask(status=[]) == {"jobs": {}}
        assert provider.ask(cancel=[]) == {"cancelled": []}


@needs_slurm
def test_several_slurms_run_side_by_side(slurm: Slurm, tmp_path: Path) -> None:
    with private_directory() as place, slurm_cluster(Path(place), nodes=1) as other:
        job = other.submit()
        other.wait_for(job, "RUNNING")
        with by_slurm(slurm, tmp_path) as provider:
            assert provider.how(job)[0] != "running"
        pids = [int(line.split()[0]) for line in other.ask("scontrol", "listpids", job).splitlines()[1:]]
        assert set(pids) & set(descendants())
    # What ran there ended with it.
    assert not set(pids) & set(descendants())


def test_missing_parsl_error_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "parsl.py").write_text("""raise ImportError("No module named 'parsl'")""")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    provider = Provider("slurm", tmp_path / "blocks", {"PYTHONPATH": path})
    failed = provider.begin()["failed"]
    assert f"{sys.executable} -m pip install parsl" in failed
    provider.end()


# Fakes: they have the commands of a batch system, and no more of it than these tests ask for. Each keeps a job in files
# of $FAKE: what was submitted in N.script, its state in N.state.

TAKES = 'n=$(($(ls "$FAKE" | grep -c script) + 1)); cat {script} > "$FAKE/$n.script"; echo {state} > "$FAKE/$n.state"'

PBS = {
    # It reads all that it can, which must not be anyone's requests.
    "qsub": """
        cat > /dev/null
        case "$*" in *"-q closed"*) echo "qsub: Queue is not enabled MSG=closed" >&2; exit 1;; esac
        for script; do :; done
        """
    + TAKES.format(script='"$script"', state="Q")
    + "; echo $n.server",
    "qstat": """
        [ ! -e "$FAKE/down" ] || { echo "Connection refused" >&2; echo "qstat: cannot connect to server (errno=111)" >&2
            exit 111; }
        code=0
        for job; do
            n=${job%%.*}
            case $job in -*) continue;; esac
            [ -e "$FAKE/$n.state" ] || { echo "qstat: Unknown Job Id $job" >&2; code=153; continue; }
            printf 'Job Id: %s.server\\n    Job_Name = a\\n    job_state = %s\\n' $n $(cat "$FAKE/$n.state")
            case $(cat "$FAKE/$n.state") in
                Q) printf '    comment = Not Running: Not enough\\n\\t of it\\n';;
                F) printf '    Exit_status = 271\\n';;
            esac
        done
        exit $code
        """,
    "qdel": """
        code=0
        for job; do
            n=${job%%.*}
            [ -e "$FAKE/$n.state" ] && echo F > "$FAKE/$n.state" || { echo "qdel: Unknown Job Id $job" >&2; code=153; }
        done
        exit $code
        """,
    "mpiexec": """
        for file; do :; done
        for rank in 0 1; do PMI_RANK=$rank sh "$file"; done
        """,
}
LSF = {
    "bsub": TAKES.format(script="", state="RUN") + '; echo "Job <$n> is submitted to queue <normal>."',
    "bjobs": """
        for job; do [ -e "$FAKE/$job.state" ] && echo "$job $(cat "$FAKE/$job.state") 130"; done
        [ -e "$FAKE/$job.state" ] || { echo "Job <$job> is not found" >&2; exit 255; }
        """,
    "bkill": 'for job; do echo EXIT > "$FAKE/$job.state"; done',
}
GRID_ENGINE = {
    "qsub": "for script; do :; done\n" + TAKES.format(script='"$script"', state="r") + "; echo $n",
    "qstat": """
        echo 'job-ID  prior   name       user         state submit/start at     queue'; echo '----'
        for file in "$FAKE"/*.state; do
            n=${file##*/}
            [ ! -e "$file" ] || echo "${n%.state} 0.55 a root $(cat "$file") 01/01/2026 00:00:00 all.q@host 1"
        done
        """,
    "qdel": 'for job; do rm "$FAKE/$job.state"; done',
}
CONDOR = {
    "condor_submit": TAKES.format(script='"${1%.submit}.script"', state="2")
    + '; mv "$FAKE/$n.state" "$FAKE/$n.0.state"; cp "$1" "$FAKE/$n.says"; echo "Submitting job(s)."'
    + '; echo "1 job(s) submitted to cluster $n."',
    "condor_q": 'for job; do [ ! -e "$FAKE/$job.state" ] || echo "$job $(cat "$FAKE/$job.state") 0 undefined"; done',
    "condor_rm": 'for job; do echo 3 > "$FAKE/$job.state"; done',
}


@contextlib.contextmanager
def fake(kind: str, commands: dict[str, str], directory: Path, **options: Any) -> Iterator[tuple[Provider, Path]]:
    """A provider that finds these commands, and where they keep their files."""
    files = directory / "fake"
    files.mkdir()
    programs = directory / "bin"
    programs.mkdir()
    for name, text in commands.items():
        (programs / name).write_text(f"#!/bin/sh\n{textwrap.dedent(text)}\n")
        (programs / name).chmod(0o755)
    found = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "FAKE": str(files)}
    with Provider(kind, directory / "blocks", found, **options) as provider:
        yield provider, files


def run_script(files: Path, job: str) -> str:
    """What a job's script prints that is run here."""
    path = f"{files.parent / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return run("bash", files / f"{job.partition('.')[0]}.script", env={**os.environ, "PATH": path}).stdout


def test_fake_pbs_runs_reports_and_ends_jobs(tmp_path: Path) -> None:
    with fake("pbs", PBS, tmp_path, queue="open", worker_init="greeting=hello; export greeting") as (provider, files):
        job = provider.job("echo $greeting from $DAYFLY_RANK", walltime_s=3601)
        assert provider.how(job) == ("pending", "Not Running: Not enough of it")
        assert "#PBS -l walltime=01:00:01\n" in (files / "1.script").read_text()
        assert run_script(files, job) == "hello from 0\n"
        (files / "1.state").write_text("R")
        other = provider.job("echo $greeting from $DAYFLY_RANK", nodes=2)
        assert "#PBS -l select=2:" in (files / "2.script").read_text()
        assert [line for line in run_script(files, other).splitlines() if "hello" in line] == [
            "hello from 0",
            "hello from 1",
        ]
        # A job that is not known lets qstat and qdel fail for all.
        states = provider.ask(status=[job, other, "99.server"])["jobs"]
        assert {name: about["state"] for name, about in states.items()} == {
            job: "running",
            other: "pending",
            "99.server": "ended",
        }
        assert provider.ask(cancel=[job, "99.server"]) == {"cancelled": [job, "99.server"]}
        assert provider.how(job) == ("ended", "exit 271")


def test_fake_pbs_refuses_and_fails(tmp_path: Path) -> None:
    with fake("pbs", PBS, tmp_path, queue="closed") as (provider, files):
        assert provider.submit() == {"refused": "qsub: Queue is not enabled MSG=closed"}
        (files / "down").touch()
        assert "cannot connect to server" in provider.ask(status=["1.server"])["failed"]


OTHERS = [("torque", PBS), ("lsf", LSF), ("grid-engine", GRID_ENGINE), ("htcondor", CONDOR)]


@pytest.mark.parametrize(("kind", "commands"), OTHERS, ids=[kind for kind, _ in OTHERS])
def test_other_fakes_run_report_and_end_jobs(kind: str, commands: dict[str, str], tmp_path: Path) -> None:
    with fake(kind, commands, tmp_path) as (provider, files):
        job = provider.job("echo it is \"$DAYFLY_RANK\" '$x'", walltime_s=90)
        assert run_script(files, job) == "it is 0 $x\n"
        if kind == "torque":
            assert provider.how(job)[0] == "pending"
            (files / "1.state").write_text("R")
        assert provider.how(job) == ("running", "")
        assert provider.ask(cancel=[job]) == {"cancelled": [job]}
        assert provider.how(job)[0] == "ended"
        if kind in ("grid-engine", "htcondor"):
            assert "a block has one node there" in provider.submit(nodes=2)["refused"]


def test_grid_engine_notice_becomes_sigterm(tmp_path: Path) -> None:
    with fake("grid-engine", GRID_ENGINE, tmp_path) as (provider, files):
        job = provider.job(STAYS)
        script = files / f"{job}.script"
        process = subprocess.Popen(["bash", script], stdout=subprocess.PIPE, text=True, process_group=0)
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "here 0\n"
            # All processes of the job have it.
            os.killpg(process.pid, signal.SIGUSR2)
            assert process.stdout.read() == "told 0\n"
            assert process.wait(10) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
