"""A real Slurm in a private directory: its controller, and nodes that are several daemons on this machine."""

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

#: Seconds within which all of it is ready.
READY = 30.0
#: Seconds that a job which is preempted or ended has between SIGTERM and SIGKILL.
GRACE = 5
#: Of every node, whatever this machine has.
CPUS = 2
#: Jobs in ``idle`` give way to those in ``batch``; in ``short`` none may ask for more than two minutes.
PARTITIONS = {
    "idle": f"Default=YES PriorityTier=1 PreemptMode=CANCEL GraceTime={GRACE} MaxTime=INFINITE",
    "batch": "PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE",
    "short": "PriorityTier=1 PreemptMode=OFF MaxTime=2",
}
#: Set for its daemons, so that whatever they leave is found.
_MARK = "HARNESS_SLURM"


def slurm_is_here() -> bool:
    """Whether its programs are installed."""
    return all(_program(name) for name in ("munged", "slurmctld", "slurmd", "sbatch", "srun"))


def unavailable() -> str | None:
    """Why there can be none; none if there can."""
    return None if slurm_is_here() else "Slurm is not installed: sudo apt-get install slurm-wlm munge"


def _program(name: str) -> str | None:
    # A person's path often has no directories of daemons.
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")


class Slurm:
    """One cluster, of nodes named n0, n1 and so on. Made by `slurm_cluster`."""

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
            # Nothing of this machine's is needed: no control groups, no accounts, no database.
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
            # What asks for more than its partition gives is refused, instead of waiting for ever.
            "EnforcePartLimits": "ALL",
            "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,bf_interval=1",
            "KillWait": GRACE,
            "MessageTimeout": 10,
            # Jobs that have ended are known for so long.
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
        """Starts all of it, and waits until it takes jobs."""
        files = {name: self.directory / f"munged.{name}" for name in ("log", "pid", "seed")}
        options = [f"--{name}-file={file}" for name, file in files.items()]
        # As root it would not have a directory like this for its files.
        force = ["--force"] if os.getuid() == 0 else []
        plug = self._munge / "socket"
        self._start("munged", "--foreground", *force, f"--socket={plug}", f"--key-file={self._key}", *options)
        self._wait(plug.exists, "munged listens")
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        self.wait_until_ready()

    def start_controller(self) -> None:
        """Starts it, or starts it again on the state that it left."""
        self._start("slurmctld", "-D", "-f", str(self.conf))

    def start_node(self, node: str) -> None:
        """Starts the daemon of a node, or starts it again."""
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
        """Until all nodes have nothing to do."""

        def ready() -> bool:
            asked = self.ask("sinfo", "--noheader", "--Node", "--format=%N %T", check=False)
            return {tuple(line.split()) for line in asked.splitlines()} == {(node, "idle") for node in self.nodes}

        self._wait(ready, "all nodes are idle")

    def stop(self, name: str = "slurmctld") -> None:
        """Ends the controller, or a node's daemon, in good order. Jobs go on."""
        process = self._processes.pop(name)
        process.terminate()
        process.wait(20)

    def kill(self, name: str = "slurmctld") -> None:
        """Ends the controller, or a node's daemon, at once. A controller has forgotten the last seconds' jobs then."""
        process = self._processes.pop(name)
        process.kill()
        process.wait(10)

    def pause(self, name: str = "slurmctld") -> None:
        """Stops the controller, or a node's daemon, as if its machine hung."""
        self._processes[name].send_signal(signal.SIGSTOP)

    def go_on(self, name: str = "slurmctld") -> None:
        """Ends a pause."""
        self._processes[name].send_signal(signal.SIGCONT)

    def output(self, name: str) -> str:
        """What a daemon wrote."""
        return f"--- {name}\n" + (self.directory / f"{name}.out").read_text(errors="replace")[-5000:]

    # Jobs

    @property
    def environment(self) -> dict[str, str]:
        """What makes Slurm's commands, and jobs, use this one."""
        return {"SLURM_CONF": str(self.conf)}

    def ask(self, *command: str, check: bool = True) -> str:
        """What one of Slurm's commands prints."""
        return run(*command, check=check, env=clean_environment(**self.environment)).stdout.strip()

    def submit(self, command: str = "sleep 600", partition: str = "batch", *options: str) -> str:
        """Submits a shell command as another user of the cluster would; answers the job's id. It has all of one node,
        unless options say otherwise."""
        options = ("--exclusive", "--time=10", f"--output={self.directory}/job-%j.out", *options)
        return self.ask("sbatch", "--parsable", f"--partition={partition}", *options, f"--wrap={command}")

    def fill(self, partition: str = "batch", command: str = "sleep 600") -> str:
        """Submits a job that needs all nodes; answers its id."""
        return self.submit(f"srun sh -c {shlex.quote(command)}", partition, f"--nodes={len(self.nodes)}")

    def about(self, job: str) -> dict[str, str]:
        """What the controller says of a job; nothing once it has forgotten it."""
        text = self.ask("scontrol", "--oneliner", "show", "job", job, check=False)
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def state(self, job: str) -> str:
        """The state of a job in Slurm's words; empty once it is forgotten."""
        return self.about(job).get("JobState", "")

    def wait_for(self, job: str, *states: str, timeout: float = 20) -> None:
        """Waits until a job is in one of these states."""
        wait_until(lambda: self.state(job) in states, f"job {job} is {' or '.join(states)}", timeout)

    def cancel(self, *jobs: str) -> None:
        """Ends jobs."""
        self.ask("scancel", *jobs)

    def cancel_all(self, timeout: float = 20) -> None:
        """Ends all jobs, and waits until the nodes have nothing to do."""
        names = ("PENDING", "RUNNING", "SUSPENDED")
        for name in names:
            self.ask("scancel", f"--state={name}", f"--user={getpass.getuser()}")
        wait_until(lambda: not self.ask("squeue", "--noheader"), "all jobs have ended", timeout)
        self.wait_until_ready()

    def drain(self, node: str, reason: str = "harness") -> None:
        """Takes a node out: what runs there goes on, nothing new starts."""
        self.ask("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}")

    def resume(self, node: str) -> None:
        """Ends a drain."""
        self.ask("scontrol", "update", f"nodename={node}", "state=resume")

    # The end

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
        """Kills every process of it: daemons, those that look after jobs, and jobs."""
        # In rounds, because what is looked at may start another meanwhile.
        while left := [int(name) for name in os.listdir("/proc") if name.isdigit() and self._is_ours(name)]:
            kill(left)
        for process in self._processes.values():
            process.wait(10)
        self._processes.clear()


@contextlib.contextmanager
def slurm_cluster(
    directory: Path, nodes: int = 2, partitions: dict[str, str] | None = None, settings: dict[str, str] | None = None
) -> Iterator[Slurm]:
    """A Slurm that is ready for jobs, all below ``directory``, which needs a short path and must be empty. Another may
    be there at the same time. ``partitions`` are settings of slurm.conf by name, ``settings`` more of them."""
    cluster = Slurm(directory, nodes, PARTITIONS if partitions is None else partitions, settings or {})
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()
