"""A Slurm in a private directory: its controller, and nodes that are several daemons on this machine."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.daemons import free_port
from harness.leaks import die_with_parent, kill, wait_until
from harness.programs import clean_environment, run

#: Seconds until the cluster must be ready.
READY = 30.0
#: Seconds between SIGTERM and SIGKILL for a job that is preempted or cancelled.
GRACE = 5
#: CPUs of every node, whatever this machine has.
CPUS = 2
#: Jobs in ``batch`` preempt those in ``idle``; jobs in ``short`` may request at most two minutes.
PARTITIONS = {
    "idle": f"Default=YES PriorityTier=1 PreemptMode=CANCEL GraceTime={GRACE} MaxTime=INFINITE",
    "batch": "PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE",
    "short": "PriorityTier=1 PreemptMode=OFF MaxTime=2",
}
#: Environment variable that marks the daemons, by which their remaining processes are found.
_MARK = "HARNESS_SLURM"


def slurm_is_here() -> bool:
    """Returns whether Slurm's programs are installed."""
    return all(_program(name) for name in ("munged", "slurmctld", "slurmd", "sbatch", "srun"))


def unavailable() -> str | None:
    """Returns why Slurm is unavailable, or None."""
    return None if slurm_is_here() else "Slurm is not installed: sudo apt-get install slurm-wlm munge"


def _program(name: str) -> str | None:
    # A user's path often lacks the directories of daemons.
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")


class Slurm:
    """One cluster, with nodes named n0, n1 and so on. Created by `slurm_cluster`."""

    def __init__(self, directory: Path, nodes: int, partitions: dict[str, str], settings: dict[str, str]) -> None:
        self.directory = directory
        self.nodes = [f"n{number}" for number in range(nodes)]
        self.conf = directory / "slurm.conf"
        self._munge = directory / "munge"
        self._munge.mkdir(mode=0o755)
        self._key = directory / "munge.key"
        self._key.touch(0o600)
        self._key.write_bytes(os.urandom(128))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        (directory / "state").mkdir()
        self.conf.write_text(self._settings(partitions, settings))

    def _settings(self, partitions: dict[str, str], more: dict[str, str]) -> str:
        host, user, place = socket.gethostname().partition(".")[0], getpass.getuser(), self.directory
        settings = {
            "ClusterName": "harness",
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmctldPort": free_port(),
            "SlurmUser": user,
            "SlurmdUser": user,
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self._munge / 'socket'}",
            "StateSaveLocation": place / "state",
            "SlurmctldPidFile": place / "slurmctld.pid",
            "SlurmdPidFile": place / "slurmd-%n.pid",
            "SlurmdSpoolDir": place / "spool-%n",
            # Use nothing of this machine's: no control groups, no accounts, no database.
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "JobAcctGatherType": "jobacct_gather/none",
            "AccountingStorageType": "accounting_storage/none",
            "MpiDefault": "none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_CPU",
            "SlurmdParameters": "config_overrides",
            "PreemptType": "preempt/partition_prio",
            "PreemptMode": "CANCEL",
            # Refuse jobs that request more than the partition allows, instead of queueing them forever.
            "EnforcePartLimits": "ALL",
            "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,bf_interval=1",
            "KillWait": GRACE,
            "MessageTimeout": 10,
            # Seconds that ended jobs stay known.
            "MinJobAge": 300,
            "ReturnToService": 2,
            "InactiveLimit": 0,
            **more,
        }
        lines = [f"{name}={value}" for name, value in settings.items()]
        about = f"NodeHostname={host} NodeAddr=127.0.0.1 CPUs={CPUS} State=UNKNOWN"
        lines += [f"NodeName={name} {about} Port={free_port()}" for name in self.nodes]
        all_nodes = ",".join(self.nodes)
        lines += [f"PartitionName={name} Nodes={all_nodes} State=UP {more}" for name, more in partitions.items()]
        return "\n".join(lines) + "\n"

    # Daemons

    def start(self) -> None:
        """Starts all daemons, and waits until the cluster accepts jobs."""
        files = {name: self.directory / f"munged.{name}" for name in ("log", "pid", "seed")}
        options = [f"--{name}-file={file}" for name, file in files.items()]
        # As root, munged otherwise refuses the permissions of this directory.
        force = ["--force"] if os.getuid() == 0 else []
        plug = self._munge / "socket"
        self._start("munged", "--foreground", *force, f"--socket={plug}", f"--key-file={self._key}", *options)
        self._wait(plug.exists, "munged listens")
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        self.wait_until_ready()

    def start_controller(self) -> None:
        """Starts the controller, with the state of an earlier one if any."""
        self._start("slurmctld", "-D", "-f", str(self.conf))

    def start_node(self, node: str) -> None:
        """Starts the daemon of a node."""
        self._start("slurmd", "-D", "-N", node, "-f", str(self.conf), known_as=node)

    def _start(self, name: str, *args: str, known_as: str = "") -> None:
        program = _program(name)
        assert program is not None, unavailable()
        name = known_as or name
        with open(self.directory / f"{name}.out", "ab") as log:
            self._processes[name] = subprocess.Popen(
                [program, *args],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=clean_environment(**self.environment, **{_MARK: str(self.directory)}),
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 (one call, loaded before)
            )

    def _wait(self, condition: Callable[[], object], what: str) -> None:
        def alive_and_so() -> object:
            for name, process in self._processes.items():
                assert process.poll() is None, f"{name} ended before {what}; it wrote:\n{self.output(name)}"
            return condition()

        try:
            wait_until(alive_and_so, what, READY)
        except AssertionError as error:
            raise AssertionError(f"{error}\n" + "\n".join(map(self.output, self._processes))) from None

    def wait_until_ready(self) -> None:
        """Waits until all nodes are idle."""

        def ready() -> bool:
            asked = self.ask("sinfo", "--noheader", "--Node", "--format=%N %T", check=False)
            return {tuple(line.split()) for line in asked.splitlines()} == {(node, "idle") for node in self.nodes}

        self._wait(ready, "all nodes are idle")

    def stop(self, name: str = "slurmctld") -> None:
        """Stops the controller or a node's daemon cleanly. Jobs continue."""
        process = self._processes.pop(name)
        process.terminate()
        process.wait(20)

    def kill(self, name: str = "slurmctld") -> None:
        """Kills the controller or a node's daemon. A controller then loses the jobs of the last seconds."""
        process = self._processes.pop(name)
        process.kill()
        process.wait(10)

    def pause(self, name: str = "slurmctld") -> None:
        """Suspends the controller or a node's daemon, as if its machine hung."""
        self._processes[name].send_signal(signal.SIGSTOP)

    def go_on(self, name: str = "slurmctld") -> None:
        """Resumes a suspended daemon."""
        self._processes[name].send_signal(signal.SIGCONT)

    def output(self, name: str) -> str:
        """Returns the end of a daemon's output."""
        return f"--- {name}\n" + (self.directory / f"{name}.out").read_text(errors="replace")[-5000:]

    # Jobs

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that select this cluster."""
        return {"SLURM_CONF": str(self.conf)}

    def ask(self, *command: str, check: bool = True) -> str:
        """Returns the output of one of Slurm's commands."""
        return run(*command, check=check, env=clean_environment(**self.environment)).stdout.strip()

    def submit(self, command: str = "sleep 600", partition: str = "batch", *options: str) -> str:
        """Submits a shell command, as another user of the cluster would. Returns the job's id.

        The job has all of one node, unless options request otherwise.
        """
        options = ("--exclusive", "--time=10", f"--output={self.directory}/job-%j.out", *options)
        return self.ask("sbatch", "--parsable", f"--partition={partition}", *options, f"--wrap={command}")

    def fill(self, partition: str = "batch", command: str = "sleep 600") -> str:
        """Submits a job that needs all nodes. Returns its id."""
        return self.submit(f"srun sh -c {shlex.quote(command)}", partition, f"--nodes={len(self.nodes)}")

    def about(self, job: str) -> dict[str, str]:
        """Returns the controller's description of a job; empty once the controller has forgotten it."""
        text = self.ask("scontrol", "--oneliner", "show", "job", job, check=False)
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def state(self, job: str) -> str:
        """Returns Slurm's state of a job; empty once the controller has forgotten it."""
        return self.about(job).get("JobState", "")

    def wait_for(self, job: str, *states: str, timeout: float = 20) -> None:
        """Waits until a job is in one of the states."""
        wait_until(lambda: self.state(job) in states, f"job {job} is {' or '.join(states)}", timeout)

    def cancel(self, *jobs: str) -> None:
        """Cancels jobs."""
        self.ask("scancel", *jobs)

    def cancel_all(self, timeout: float = 20) -> None:
        """Cancels all jobs, and waits until the nodes are idle."""
        names = ("PENDING", "RUNNING", "SUSPENDED")
        for name in names:
            self.ask("scancel", f"--state={name}", f"--user={getpass.getuser()}")
        wait_until(lambda: not self.ask("squeue", "--noheader"), "all jobs have ended", timeout)
        self.wait_until_ready()

    def drain(self, node: str, reason: str = "harness") -> None:
        """Drains a node: running jobs continue, and no job starts."""
        self.ask("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}")

    def resume(self, node: str) -> None:
        """Ends the drain of a node."""
        self.ask("scontrol", "update", f"nodename={node}", "state=resume")

    # Teardown

    def _is_ours(self, process: str) -> bool:
        try:
            variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        if f"{_MARK}={self.directory}".encode() in variables:
            return True
        in_a_job = any(variable.startswith(b"SLURM_JOB_ID=") for variable in variables)
        return in_a_job and f"SLURM_CONF={self.conf}".encode() in variables

    def end(self) -> None:
        """Kills all processes of the cluster: daemons, job supervisors and jobs."""
        # Repeat, because a process may start another during the scan.
        while left := [int(name) for name in os.listdir("/proc") if name.isdigit() and self._is_ours(name)]:
            kill(left)
        for process in self._processes.values():
            process.wait(10)
        self._processes.clear()


@contextlib.contextmanager
def slurm_cluster(
    directory: Path, nodes: int = 2, partitions: dict[str, str] | None = None, settings: dict[str, str] | None = None
) -> Iterator[Slurm]:
    """Runs a Slurm that is ready for jobs, below ``directory``, which must be empty and have a short path.

    Several clusters may run at the same time. ``partitions`` are settings of slurm.conf by partition, ``settings`` are
    others.
    """
    cluster = Slurm(directory, nodes, PARTITIONS if partitions is None else partitions, settings or {})
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()
