"""Clients: connections to a manager, which grant leases and submit durable tasks."""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import json
import os
import site
import sys
import sysconfig
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import quote

import cloudpickle

from dayfly import _native
from dayfly._async import items, submitted, twin
from dayfly._environment import Environment, EnvironmentLike, described, environment_of
from dayfly._errors import ConnectionFailed, RequestError, TagInUse
from dayfly._gang import at_once
from dayfly._trace import traceparent
from dayfly._trust import NOBODY, Trust, TrustLike, trust_of

if TYPE_CHECKING:
    from dayfly._batch import Batch
    from dayfly._flow import Flow, Step
    from dayfly._future import Future
    from dayfly._gang import Gang
    from dayfly._lease import Lease
    from dayfly._tasks import Executor, Placement, Registered
    from dayfly._trigger import Trigger

#: Default duration of a lease in seconds. A shorter one would end in a notebook left open overnight. The manager's
#: policy may allow less.
DAY = 86_400.0
#: Slots of a channel's rings, and bytes of one slot. Arguments of up to 2 KiB travel inside a slot, and both rings of a
#: worker fit into a level-2 cache.
SLOTS = 64
STRIDE = 2048
#: Bytes of address space for large values, in each direction and for each worker.
BULK = 8 << 30


def connect(
    url: str | os.PathLike[str] | None = None,
    *,
    config: str | os.PathLike[str] | None = None,
    token: str | None = None,
    ca: str | os.PathLike[str] | None = None,
    node: str | os.PathLike[str] | None = None,
    trust: TrustLike = None,
) -> Client:
    """Connects to a manager.

    The manager is the one that the arguments name, else the one in the environment variable ``DAYFLY_MANAGER``, else
    the one that ``dayfly up`` recorded in this user's state directory. If there is none, this process starts a manager
    of its own, which ends with the process.

    Args:
        url: address of a manager, such as ``https://host:7070`` (requires ``token`` and ``ca``), or path of a
            connection file or of the state directory that contains one.
        config: the same path, as a keyword. It takes precedence over ``url`` when both are paths.
        token: bearer token, when ``url`` is an address.
        ca: file with the certificate of the manager's certificate authority, when ``url`` is an address.
        node: allowance file (``allowance.json``) of a node. The client then leases from that node without a manager.
        trust: names of other tenants whose results this process unpickles, or True for all tenants. Unpickling runs
            code that they choose. All other foreign results are read as data only: plain values, NumPy arrays and
            Arrow tables. A result that contains anything else raises `dayfly.Untrusted`.

    Returns:
        The connected client. Use it as a context manager, or call `Client.close`.

    Raises:
        ValueError: if ``url`` is an address and ``token`` or ``ca`` is missing.
        dayfly.Error: if the manager cannot be reached, or refuses the connection.
    >>> with connect() as client:  # doctest: +SKIP
    ...     client
    <dayfly.Client of embedded manager at https://127.0.0.1:...>
    """
    client = _connected(url, config, token, ca, node)
    client._trust = trust_of(trust)
    return client


def _connected(
    url: str | os.PathLike[str] | None,
    config: str | os.PathLike[str] | None,
    token: str | None,
    ca: str | os.PathLike[str] | None,
    node: str | os.PathLike[str] | None,
) -> Client:
    if node is not None:
        return Client(_native.Client.node(os.fspath(node)))
    path = config if config is not None else url
    if url is not None and os.fspath(url).startswith(("https://", "http://")):
        if token is None or ca is None:
            raise ValueError("an address needs token= and ca= beside it; a connection file has all three")
        return Client(_native.Client.manager(os.fspath(url), token, Path(ca).read_text()))
    return Client(_native.Client.connect(None if path is None else os.fspath(path), binary()))


def binary() -> str | None:
    """Returns the path of the ``dayfly`` program: ``DAYFLY_BIN``, else the packaged one, else None."""
    named = os.environ.get("DAYFLY_BIN")
    if named:
        return named
    packaged = Path(__file__).parent / "bin" / "dayfly"
    return str(packaged) if packaged.is_file() else None


def module_path() -> list[str]:
    """Returns the directories of ``sys.path`` that another start of this interpreter would not search."""
    paths = sysconfig.get_paths()
    own = {os.path.realpath(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    own |= {os.path.realpath(path) for path in [*site.getsitepackages(), site.getusersitepackages()]}
    own.add(os.path.realpath(os.path.join(paths["stdlib"], "lib-dynload")))
    found = []
    for entry in sys.path:
        real = os.path.realpath(entry or os.curdir)
        if real not in own and os.path.isdir(real) and real not in found:
            found.append(real)
    return found


def runtime(environment: Environment | None = None) -> dict[str, Any]:
    """Returns the description of the interpreter and the packages that workers need for this process's functions."""
    version = sys.version_info
    extra = {} if environment is None else {"environment": described(environment)}
    return {
        "kind": "python",
        "version": f"{version.major}.{version.minor}.{version.micro}",
        "cloudpickle": cloudpickle.__version__,
        "executable": sys.executable or None,
        "path": module_path(),
        **extra,
    }


#: Hexadecimal digits of a complete id.
ID_DIGITS = 32


class Client:
    """A connection to a manager. Made by `connect`."""

    def __init__(self, native: _native.Client) -> None:
        self._native = native
        #: Other tenants whose results this client unpickles.
        self._trust: Trust = NOBODY
        #: Untrusted tenants that operate the workers that this client leases.
        self._foreign: list[str] = []
        self._leases: weakref.WeakSet[Lease] = weakref.WeakSet()
        self._pid = os.getpid()
        # Reentrant: an executor registers itself while it is created under this lock.
        self._lock = threading.RLock()
        self._executors: dict[str | None, Executor] = {}
        #: Names and ids of endpoints that were found to exist.
        self._known_endpoints: set[str] = set()
        #: Executors that the user created with this client. `close` ends them.
        self._others: weakref.WeakSet[Executor] = weakref.WeakSet()
        _clients.add(self)

    @classmethod
    def _own(cls) -> Self:
        """Starts an embedded manager, regardless of the configuration."""
        return cls(_native.Client.embedded(binary()))

    def lease(
        self,
        workers: int = 1,
        *,
        mode: Literal["auto", "hot", "warm"] = "auto",
        duration: float = DAY,
        memory: int = 0,
        cores: int = 1,
        gpus: int = 0,
        hot_for: float | None = None,
        runtime: Literal["python", "native"] = "python",
        transport: str = "auto",
        idle_release: float = 10.0,
        node: str | None = None,
        sandbox: Literal["process", "isolated", "container"] | None = None,
        image: str | os.PathLike[str] | None = None,
        environment: EnvironmentLike = None,
        readable: Iterable[str | os.PathLike[str]] = (),
        writable: Iterable[str | os.PathLike[str]] = (),
        network: bool = False,
        wait: float = 0.0,
        slots: int = SLOTS,
        stride: int = STRIDE,
        bulk: int = BULK,
        spin: float | None = 50e-6,
        depth: int = 0,
        retries: int = 3,
        echo: bool = False,
    ) -> Lease:
        """Leases workers and opens a channel to each.

        Args:
            workers: number of workers.
            mode: ``hot`` workers poll, each on a core of its own. ``warm`` workers sleep while they wait. ``auto`` is
                ``hot`` if enough cores are free, else ``warm``. `Lease.mode` returns the mode that was granted.
            duration: seconds until the lease ends, counted from its first use.
            memory: bytes for the whole lease; 0 for the node's default share.
            cores: cores of each worker. A warm worker counts as that many workers towards the node's limit.
            gpus: GPUs of each worker. ``CUDA_VISIBLE_DEVICES`` names them, and the worker sees no others.
            hot_for: seconds that a hot worker polls after a call before it sleeps; None for no limit.
            runtime: ``python`` workers call Python functions and shared libraries; ``native`` workers call shared
                libraries only.
            transport: ``shm``, ``tcp``, ``tls``, ``libfabric`` or ``libfabric:PROVIDER``. ``auto`` chooses the best of
                the first three.
            idle_release: seconds that the lease stays after its last channel has closed, for example because this
                process died; 0 to keep it for its whole duration.
            node: id of the node to lease from; None for any node.
            sandbox: ``process`` workers run as the node's own user. ``isolated`` workers see programs, libraries and
                the files named here, and have no privileges, no network and bounded memory. ``container`` workers are
                isolated workers that see an image in place of the host's programs and libraries. None is
                ``container`` if ``image`` is given, else the site's default.
            image: container image, as a name or path that the site allows. Append ``@sha256:...`` to require one
                version. The image provides Python, in the client's minor version, and the modules that functions
                import.
            environment: packages that functions import and the node's Python lacks: a list of requirements, a
                requirements or lock file, or a `dayfly.Environment`. The node builds it once, and grants no lease for
                it before that (see ``wait``).
            readable: files and directories of the host that isolated workers may read, if the site allows it.
            writable: files and directories of the host that isolated workers may read and write, if the site allows it.
            network: whether isolated workers share the host's network, if the site allows it.
            wait: seconds to wait for capacity; 0 to fail at once.
            slots: maximum outstanding calls of one worker; a power of two.
            stride: bytes of a slot. Smaller arguments and results travel inside the slot.
            bulk: bytes of address space for larger values, in each direction and for each worker.
            spin: seconds that a waiting thread polls before it sleeps; None to poll without limit, which occupies a
                core.
            depth: calls sent ahead to a worker; 0 to choose it from measured times.
            retries: how many times a call that was not executed is retried on another worker.
            echo: whether to print the workers' output here as it appears. `Lease.output` returns it in any case. An
                embedded manager prints to this terminal without ``echo``.

        Returns:
            The lease. Use it as a context manager, or call `Lease.shutdown`.

        Raises:
            ValueError: if ``environment`` is given for a runtime other than ``python``.
            dayfly.CapacityError: if there is no capacity within ``wait`` seconds, or no quota or budget.
            dayfly.Error: if the manager refuses the request or cannot be reached.
        """
        wanted = {name: value for name, value in locals().items() if name != "self"}
        [lease] = self._lease(wanted, None)
        return lease

    def gang(
        self, workers: int, *, placement: Literal["packed", "spread", "together", "fabric"] = "packed", **lease: Any
    ) -> Gang:
        """Leases all of the workers or none, on one node or several.

        Args:
            workers: number of workers on all nodes together.
            placement: ``packed`` uses as few nodes as possible, ``spread`` distributes evenly over as many nodes as
                possible, ``together`` uses one node, and ``fabric`` uses nodes of one fabric, as few as possible.
            lease: further arguments of `lease`; ``memory`` is for all workers together.

        Returns:
            The gang, with one lease for each node.

        Raises:
            dayfly.Error: ``no_capacity`` if the workers do not fit now (see ``wait`` of `lease`), ``too_large`` if they
                never fit.
        """
        from dayfly._gang import Gang

        bound = inspect.signature(Client.lease).bind(self, workers, **lease)
        bound.apply_defaults()
        wanted = dict(bound.arguments)
        del wanted["self"]
        return Gang(self._lease(wanted, placement))

    def _lease(self, wanted: dict[str, Any], placement: str | None) -> list[Lease]:
        """Leases according to the arguments of `lease`, and opens the channels."""
        from dayfly._lease import Lease

        files = [(path, False) for path in wanted.pop("readable")] + [(path, True) for path in wanted.pop("writable")]
        wanted["files"] = [(os.path.abspath(path), writable) for path, writable in files]
        environment = environment_of(wanted.pop("environment"))
        if environment is not None and wanted["runtime"] != "python":
            raise ValueError("an environment is of Python's packages; lease with runtime='python'")
        wanted["runtime"] = json.dumps(runtime(environment)) if wanted["runtime"] == "python" else ""
        wanted["traceparent"] = traceparent()
        wanted["image"] = None if wanted["image"] is None else os.fspath(wanted["image"])
        # An embedded manager already writes the workers' output to this terminal.
        echo = wanted.pop("echo") and not (self._native.is_embedded() and sys.stdout is sys.__stdout__)
        channels = {
            name: wanted.pop(name) for name in ("transport", "slots", "stride", "bulk", "spin", "depth", "retries")
        }
        natives = self._native.lease(wanted, placement)
        pools = at_once([functools.partial(native.pool, foreign=self._foreign, **channels) for native in natives])
        leases = [Lease(native, pool, self, echo=echo) for native, pool in zip(natives, pools, strict=True)]
        with self._lock:
            self._leases.update(leases)
        return leases

    def allowance(
        self,
        workers: int,
        *,
        duration: float = DAY,
        memory: int = 0,
        cores: int = 0,
        workers_per_node: int = 0,
        sandbox: Literal["process", "isolated"] | None = None,
    ) -> Client:
        """Returns a client that leases directly from nodes, without asking the manager for each lease.

        Use it for many short leases, and for leases while the manager is unavailable. Nodes report the leases to the
        manager afterwards. The client tries nodes with capacity in turn.

        Args:
            workers: maximum number of workers of all leases at any time.
            duration: maximum duration of a lease in seconds.
            memory: bytes for all leases together; 0 to leave it to the nodes.
            cores: cores for all leases together; 0 for one for each worker.
            workers_per_node: maximum number of workers on one node; 0 for twice an even share.
            sandbox: as for `lease`. All leases of the returned client use it.

        Raises:
            dayfly.Error: if the manager refuses the allowance or cannot be reached.
        """
        native = self._native.allowance(
            workers=workers,
            cores=cores,
            memory=memory,
            workers_per_node=workers_per_node,
            duration=duration,
            sandbox=sandbox,
        )
        client = Client(native)
        client._trust = self._trust
        return client

    # Durable tasks

    def register(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        cores: int = 1,
        memory: int = 0,
        gpus: int = 0,
        walltime: float | None = None,
        repeatable: bool = False,
        share: Iterable[str] = (),
        environment: EnvironmentLike = None,
        image: str | None = None,
        ranks: int = 0,
        placement: Placement | None = None,
        source: bool = False,
    ) -> Registered:
        """Registers a function with the manager, so that you and other tenants can run it by name or id.

        Idempotent: registering the same function again returns the existing one.

        Args:
            fn: a callable, a `Command`, an `EntryPoint` or a `Symbol`. The manager keeps its present state.
            name: name of the function; by default the callable's. Functions of one name are versions, and the name
                means the last one.
            description: description for people; by default the docstring.
            cores: cores of the worker that runs it.
            memory: bytes of memory of the worker; 0 for the node's default share.
            gpus: GPUs of the worker, which sees no others.
            walltime: maximum seconds of one execution. The execution is then killed with all its processes.
            repeatable: whether a task may be executed again if it may have been executed already.
            share: names of tenants that may also run it, ``"team:NAME"`` for a team, ``"*"`` for all tenants.
            environment: packages that the function imports and the nodes' Python lacks: a list of requirements, a
                requirements or lock file, or a `dayfly.Environment`. Nodes build it once for the same content.
            image: container image to run in, by the name that the site gives it.
            ranks: number of workers that one execution has at the same time, all or none. Each worker calls the
                function, where ``MPI.COMM_WORLD`` of `dayfly.MPI` connects them. The result is the list of the ranks'
                results.
            placement: placement of the ranks on nodes, as for `gang`.
            source: whether to send the function as source text, which any version of Python runs, with arguments and
                results in JSON. The function needs a ``def`` of its own, imports what it needs inside its body, and
                loses its decorators. An exception that it raises arrives as `FunctionError`, with the traceback in
                its message.

        Returns:
            The registered function.

        Raises:
            TypeError: if ``source`` is True and the source text is not complete without its surroundings.
            dayfly.Error: if the manager refuses the function or cannot be reached.
        """
        from dayfly._tasks import Registered, register

        status = register(
            self._executor()._pool,
            fn,
            name=name if name is not None else getattr(fn, "__name__", None),
            description=description,
            cores=cores,
            memory=memory,
            gpus=gpus,
            walltime=walltime,
            repeatable=repeatable,
            share=share,
            environment=environment_of(environment),
            image=image,
            ranks=ranks,
            placement=placement,
            source=source,
        )
        return Registered(status, fn)

    def function(
        self, name: str, *, owner: str | None = None, version: str | None = None, trust: TrustLike = None
    ) -> Registered:
        """Returns the last version of a registered function: your own by name, another tenant's as ``"OWNER/NAME"``.

        A name without an owner never means another tenant's function, because any tenant may share functions of any
        name.

        Args:
            name: such as ``"resize"`` or ``"ann/resize"``. With ``@ID`` appended, exactly the version with this id,
                which is the hash of its code and runtime. The id alone is also valid.
            owner: the same as ``OWNER/`` before the name.
            version: the same as ``@ID`` after the name.
            trust: tenants whose results of this function are unpickled, as for `connect`; True for its owner and for
                any tenant that runs it.

        Raises:
            dayfly.Error: ``not_found`` if there is no such function or version. If only other tenants have functions of
                this name, the message names them.
        """
        from dayfly._tasks import Registered

        named = f"{'' if owner is None else f'{owner}/'}{name}{'' if version is None else f'@{version}'}"
        status = json.loads(self._native.get(f"/v1/functions/{quote(named, safe='')}"))
        return Registered(status, trust=trust_of(trust))

    def functions(self) -> list[Registered]:
        """Returns the functions that you may run, with their owners."""
        from dayfly._tasks import Registered

        return [Registered(status) for status in json.loads(self._native.get("/v1/functions"))]

    def share(self, function: Registered | str, share: Iterable[str]) -> Registered:
        """Replaces the list of tenants that may run a function of yours. Accepted tasks continue.

        Args:
            function: name of the function, for all its versions; or one version, or its id.
            share: as for `register`; empty to share it with nobody.

        Returns:
            The function with its new sharing.

        Raises:
            dayfly.Error: ``not_found`` if you have no such function.
        """
        from dayfly._tasks import Registered

        name = function.id if isinstance(function, Registered) else function
        spec = json.dumps({"shared_with": [share] if isinstance(share, str) else list(share)})
        return Registered(json.loads(self._native.put(f"/v1/functions/{quote(name, safe='')}/sharing", spec)))

    def remove_function(self, function: Registered | str) -> list[Registered]:
        """Removes a function of yours that no task, flow or trigger uses. Outcomes of its tasks stay.

        Args:
            function: name of the function, for all its versions; or one version, or its id.

        Returns:
            The removed functions.

        Raises:
            dayfly.Error: if you have no such function (``not_found``), or it is in use.
        """
        from dayfly._tasks import Registered

        name = function.id if isinstance(function, Registered) else function
        gone = json.loads(self._native.delete(f"/v1/functions/{quote(name, safe='')}"))
        return [Registered(status) for status in gone]

    def run(self, fn: Callable[..., Any] | Registered, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submits a durable task and returns its future. The task runs even if this process ends.

        Args:
            fn: a callable or a registered function.
            args: positional arguments.
            kwargs: keyword arguments.
        """
        return self._executor().submit(fn, *args, **kwargs)

    def batch(self, /, tag: str | None = None, *, extend: bool = False, **options: Any) -> Batch:
        """Returns an empty batch of durable tasks: ``with client.batch() as batch: batch.submit(f, x)``.

        Args:
            tag: tag by which `tasks` finds the tasks again; random by default.
            extend: whether to allow a tag that already has tasks. The batch adds to them.
            options: as for `Executor`.

        Raises:
            dayfly.TagInUse: if the tag already has tasks and ``extend`` is False.
        """
        from dayfly._batch import Batch
        from dayfly._tasks import Executor

        if tag is not None and not extend:
            self._check_tag(tag)
        return Batch(self, Executor(client=self, tag=tag, **options), [])

    def map(
        self,
        /,
        fn: Callable[..., Any] | Registered,
        *iterables: Iterable[Any],
        tag: str | None = None,
        extend: bool = False,
        **options: Any,
    ) -> Batch:
        """Submits a durable task for every item. When it returns, the manager has stored all of them on disk.

        Args:
            fn: the function. It takes as many arguments as there are iterables.
            iterables: sources of the arguments. The shortest determines the number of tasks.
            tag: tag by which `tasks` finds the tasks again; random by default.
            extend: whether to allow a tag that already has tasks. The new tasks are added to them.
            options: as for `Executor`.

        Returns:
            The batch of the submitted tasks.

        Raises:
            dayfly.TagInUse: if the tag already has tasks, for example because a script runs again, and ``extend`` is
                False.
            dayfly.Error: if the manager refused the first task.
            TimeoutError: if the manager has not accepted all tasks within an hour.
        """
        batch = self.batch(tag, extend=extend, **options)
        batch.extend(fn, *iterables)
        batch.flush(timeout=3600.0)
        batch._raise_refused()
        return batch

    def tasks(self, tag: str, *, trust: TrustLike = None) -> Batch:
        """Returns the tasks of a tag, from any process or machine, for example after a crash.

        Args:
            tag: tag of the tasks.
            trust: tenants whose results are unpickled, as for `connect`.
        """
        from dayfly._batch import statuses

        batch = self.batch(tag, extend=True, trust=trust)
        executor = batch._executor
        batch.futures = executor._adopt(statuses(self, tag))
        return batch

    def task(self, task: str, *, trust: TrustLike = None) -> Future[Any]:
        """Returns the future of one task.

        Args:
            task: id of the task, or at least six digits of the beginning or end of its id, if they match only one of
                your tasks.
            trust: tenants whose results are unpickled, as for `connect`.

        Raises:
            dayfly.RequestError: ``not_found`` if no task matches, ``ambiguous`` if several do.
        """
        status = self.task_status(task)
        [future] = self._executor(status["tag"])._adopt([status])
        future._trust = trust_of(trust)
        return future

    def task_status(self, task: str | Future[Any]) -> dict[str, Any]:
        """Returns the state of a task and its timestamps, as the API's ``TaskStatus``.

        Args:
            task: id or future of the task.
        """
        status: dict[str, Any] = json.loads(self._native.get(f"/v1/tasks/{_id_of(task)}"))
        return status

    def _whole(self, task: str | Future[Any]) -> str:
        """Returns the complete id of a task, given by its future, its id, or a beginning or end of its id."""
        given = _id_of(task)
        return given if len(given) == ID_DIGITS else str(self.task_status(given)["id"])

    def cancel(self, tasks: str | Future[Any] | Iterable[str | Future[Any]]) -> dict[str, int]:
        """Cancels those of the tasks that no worker has received. See `kill` for tasks that run.

        Args:
            tasks: one or several tasks, by id or future. `Batch.cancel` cancels all tasks of a tag.

        Returns:
            ``ended``, the number of tasks that never begin, and ``running``, the number of tasks that continue.
        """
        return self._end_tasks({"tasks": [self._whole(task) for task in _ids_of(tasks)], "only_waiting": True})

    def kill(self, tasks: str | Future[Any] | Iterable[str | Future[Any]]) -> dict[str, int]:
        """Ends tasks, including those that run.

        Args:
            tasks: one or several tasks, by id or future. `Batch.kill` ends all tasks of a tag.

        Returns:
            ``ended``, the number of tasks that never begin, and ``told``, the number of running tasks that are being
            ended.
        """
        return self._end_tasks({"tasks": [self._whole(task) for task in _ids_of(tasks)]})

    def _end_tasks(self, which: dict[str, Any]) -> dict[str, int]:
        ended: dict[str, int] = json.loads(self._native.post("/v1/tasks/cancel", json.dumps(which)))
        return ended

    def forget(self, tasks: Iterable[str | Future[Any]] = (), *, tag: str | None = None) -> dict[str, int]:
        """Deletes ended tasks and their results before their retention expires.

        Args:
            tasks: ids or futures. Tasks that have not ended, or that other tasks depend on, are kept.
            tag: delete all tasks with this tag.

        Returns:
            ``forgotten``, the number of deleted tasks, and ``left``, the number of kept tasks.
        """
        spec = json.dumps({"tasks": [self._whole(task) for task in tasks], "tag": tag})
        forgotten: dict[str, int] = json.loads(self._native.post("/v1/tasks/forget", spec))
        return forgotten

    def output(self, task: str | Future[Any], stream: Literal["out", "err"] | None = None) -> str:
        """Returns the output of a durable task so far. The manager keeps the last 64 KiB with the task's outcome.

        Args:
            task: id or future of the task.
            stream: ``out`` for standard output, ``err`` for standard error; both by default.

        Raises:
            TypeError: if the future belongs to a call of a lease. Use `Lease.output` instead.
        """
        from dayfly._output import of_task

        return "".join(text for _, text in of_task(self._native, _id_of(task), stream, follow=False))

    def follow(
        self, task: str | Future[Any], stream: Literal["out", "err"] | None = None
    ) -> Iterator[tuple[Literal["out", "err"], str]]:
        """Yields the output of a durable task as it appears, until the task ends: pairs of stream and text.

        The arguments are those of `output`.
        """
        from dayfly._output import of_task

        return of_task(self._native, _id_of(task), stream, follow=True)

    # Variants for asyncio

    aregister = twin(register)
    amap = twin(map)
    atask = twin(task)
    atasks = twin(tasks)
    acancel = twin(cancel)
    akill = twin(kill)

    async def arun(self, fn: Callable[..., Any] | Registered, /, *args: Any, **kwargs: Any) -> Any:
        """Submits a durable task and awaits its result. Cancelling the wait cancels the task."""
        return await submitted(lambda: self.run(fn, *args, **kwargs))

    @contextlib.asynccontextmanager
    async def abatch(self, tag: str | None = None, *, extend: bool = False, **options: Any) -> AsyncIterator[Batch]:
        """As `batch`, for ``async with``. On exit, the manager has accepted all tasks."""
        batch = await twin(Client.batch)(self, tag, extend=extend, **options)
        try:
            yield batch
        finally:
            await twin(type(batch).flush)(batch)

    def afollow(
        self, task: str | Future[Any], stream: Literal["out", "err"] | None = None
    ) -> AsyncIterator[tuple[Literal["out", "err"], str]]:
        """As `follow`, for ``async for``."""
        return items(lambda: self.follow(task, stream))

    # Endpoints, triggers, flows and teams

    def endpoints(self) -> list[dict[str, Any]]:
        """Returns the endpoints that you may use, with their load."""
        endpoints: list[dict[str, Any]] = json.loads(self._native.get("/v1/endpoints"))
        return endpoints

    def _check_endpoint(self, name: str) -> None:
        """Checks that an endpoint exists. Does nothing if the manager cannot be reached.

        Raises:
            dayfly.RequestError: ``not_found``, with the names of the existing endpoints.
        """
        if name in self._known_endpoints:
            return
        try:
            known = self.endpoints()
        except ConnectionFailed:
            # Submitted tasks wait for the manager, which then refuses the endpoint.
            return
        # The manager counts tasks to list endpoints, which is expensive if there are many tasks.
        self._known_endpoints |= {str(endpoint[key]) for endpoint in known for key in ("name", "id")}
        if name in self._known_endpoints:
            return
        names = ", ".join(f"`{endpoint['name']}`" for endpoint in known) or "none"
        raise RequestError(
            f"there is no endpoint `{name}` that you may use. There are: {names}. `client.endpoints()` and "
            "`dayfly endpoint list` show them",
            "not_found",
        )

    def _check_tag(self, tag: str) -> None:
        """Raises `TagInUse` if a tag already has tasks."""
        try:
            counts = json.loads(self._native.get(f"/v1/tasks/counts?tag={quote(tag, safe='')}"))
        except ConnectionFailed:
            # Submitted tasks wait for the manager.
            return
        count = sum(counts[state] for state in ("queued", "waiting", "environment", "running", "done"))
        if count:
            raise TagInUse(
                f"the tag {tag!r} has {count:,} tasks already, {counts['done']:,} of them done: client.tasks({tag!r}) "
                "has them. Add extend=True to submit more tasks with this tag, or take another",
                "invalid_request",
            )

    def remove_endpoint(self, name: str) -> dict[str, Any]:
        """Removes an endpoint of yours. Its tasks end.

        Args:
            name: name of the endpoint, as in `endpoints`.

        Returns:
            The last status of the endpoint.
        """
        endpoint: dict[str, Any] = json.loads(self._native.delete(f"/v1/endpoints/{quote(name, safe='')}"))
        return endpoint

    def trigger(
        self,
        name: str,
        fn: Callable[..., Any] | Registered | str,
        *,
        timer: str | None = None,
        zone: str = "UTC",
        catch_up: bool = True,
        files: str | os.PathLike[str] | None = None,
        pattern: str | None = None,
        existing: bool = False,
        every: float | None = None,
        watched_at: str | None = None,
        webhook: bool = False,
        endpoint: str | None = None,
        keywords: Mapping[str, Any] | None = None,
        then: Iterable[Step] = (),
        valid_for: float | None = None,
        priority: int = 0,
        deadline: float | None = None,
        retries: int = 0,
        retry_wait: float = 0.0,
        walltime: float | None = None,
        repeatable: bool | None = None,
        description: str = "",
        paused: bool = False,
    ) -> Trigger:
        """Runs a function on a schedule (``timer``), on new files (``files``) or on requests (``webhook``).

        Each event becomes a task at least once, even if this process ends. The function's only positional argument is
        the event, a dictionary. The tasks have the tag ``trigger:NAME``. Creating a trigger under an existing name
        changes it and replaces its token.

        Args:
            name: name, unique among your triggers.
            fn: a callable, which is registered; a registered function; or the name of one, as for `function`.
            timer: schedule in cron syntax: minute, hour, day of month, month, day of week, optionally preceded by
                seconds.
            zone: time zone of the schedule, such as ``Europe/Berlin``.
            catch_up: whether to run once for times that passed while the manager was down: for the last of them.
            files: directory or ``s3://bucket/prefix`` to watch. A path with a pattern, such as ``/data/in/*.tif``,
                selects matching files only.
            pattern: the pattern as a separate argument: paths below the directory, such as ``*.tif``, or ``**/*.tif``
                to include subdirectories.
            existing: whether files that already exist count as events.
            every: seconds between two scans; by default 1 for a directory and 10 for a bucket.
            watched_at: the endpoint that scans, which must be yours; by default the endpoint that runs the tasks.
            webhook: whether to accept requests, at `Trigger.url`.
            endpoint: the endpoint that runs the tasks, as for `Executor`.
            keywords: keyword arguments passed with each event, as JSON values.
            then: further steps, which take the result. The trigger's function is then the first step of a flow, with
                the name ``event``.
            valid_for: seconds until the trigger's token expires; by default, and at most, the validity of this client's
                token.
            priority: priority of the tasks, as for `Executor`.
            deadline: seconds until a task must have ended, as for `Executor`.
            retries: how many times a task is executed again if the function raises.
            retry_wait: seconds before the first retry. The wait doubles with each further retry.
            walltime: maximum seconds of one execution; by default the function's.
            repeatable: whether a task may be executed again if it may have been executed already; by default the
                function's setting.
            description: description for people.
            paused: whether to create the trigger paused.

        Returns:
            The trigger, with its token.

        Raises:
            ValueError: if not exactly one of ``timer``, ``files`` and ``webhook`` is given, or an argument does not fit
                it.
            dayfly.Error: if the manager refuses the trigger or cannot be reached.
        """
        about = {name: value for name, value in locals().items() if name != "self"}
        from dayfly._trigger import make

        return make(self, **about)

    def triggers(self) -> list[Trigger]:
        """Returns your triggers."""
        from dayfly._trigger import Trigger

        return [Trigger(self, status) for status in json.loads(self._native.get("/v1/triggers"))]

    def flow(self, steps: Iterable[Step], input: Any = None, *, name: str = "") -> Flow:
        """Starts a flow: functions that take each other's results, as tasks that run even if this process ends.

        Arguments and results of steps travel as JSON. The tasks have the tag ``flow:ID``.

        Args:
            steps: the steps. Each stands after the steps whose results it takes; see `dayfly.Step`.
            input: input of the flow, as a JSON value.
            name: name for people.

        Raises:
            dayfly.Error: if the manager refuses the flow or cannot be reached.
        """
        from dayfly._flow import start

        return start(self, steps, input, name)

    def flows(self, limit: int = 100) -> list[Flow]:
        """Returns your flows, the latest first.

        Args:
            limit: maximum number of flows.
        """
        from dayfly._flow import Flow

        return [Flow(self, status) for status in json.loads(self._native.get(f"/v1/flows?limit={limit}"))]

    def find_flow(self, flow: str) -> Flow:
        """Returns a flow by its id, from any process or machine, for example after a crash.

        Raises:
            dayfly.Error: ``not_found`` if you have no such flow.
        """
        from dayfly._flow import Flow

        return Flow(self, json.loads(self._native.get(f"/v1/flows/{quote(flow, safe='')}")))

    def team(self, name: str, members: Iterable[str], *, description: str = "") -> dict[str, Any]:
        """Creates a team of tenants, or changes yours. `register` shares functions with it as ``team:NAME``.

        Args:
            name: name, unique among the teams of all tenants.
            members: names of tenants.
            description: description for people.

        Returns:
            The team.
        """
        spec = json.dumps({"members": list(members), "description": description})
        team: dict[str, Any] = json.loads(self._native.put(f"/v1/teams/{quote(name, safe='')}", spec))
        return team

    def teams(self) -> list[dict[str, Any]]:
        """Returns the teams that you own or belong to."""
        teams: list[dict[str, Any]] = json.loads(self._native.get("/v1/teams"))
        return teams

    def remove_team(self, name: str) -> dict[str, Any]:
        """Removes a team of yours. Functions shared with the team are no longer shared with its members.

        Returns:
            The removed team.
        """
        team: dict[str, Any] = json.loads(self._native.delete(f"/v1/teams/{quote(name, safe='')}"))
        return team

    def usage(self, *, everybody: bool = False) -> list[dict[str, Any]]:
        """Returns the resources that your durable tasks used, by day, function and endpoint; see the API's
        ``UsageLine``.

        Args:
            everybody: whether to include all tenants. Requires the operator role.
        """
        lines: list[dict[str, Any]] = json.loads(self._native.get(f"/v1/usage?everybody={str(everybody).lower()}"))
        return lines

    def _executor(self, tag: str | None = None) -> Executor:
        """Returns the executor for tasks of this tag, or, for None, the one with a tag of its own."""
        from dayfly._tasks import Executor

        with self._lock:
            made = self._executors.get(tag)
            if made is None:
                made = self._executors[tag] = Executor(client=self, tag=tag)
        return made

    def rendezvous(self) -> dict[str, str]:
        """Returns the rendezvous for the ranks of groups: its ``address`` (``host:port``) and its ``key``."""
        place: dict[str, str] = json.loads(self._native.get("/v1/rendezvous"))
        return place

    def nodes(self) -> list[dict[str, Any]]:
        """Returns the manager's nodes."""
        nodes: list[dict[str, Any]] = json.loads(self._native.get("/v1/nodes"))
        return nodes

    def leases(self) -> list[dict[str, Any]]:
        """Returns the manager's leases."""
        leases: list[dict[str, Any]] = json.loads(self._native.get("/v1/leases"))
        return leases

    def close(self) -> None:
        """Shuts down this client's executors and leases, and its manager if that is embedded."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            leases, executors = list(self._leases), [*self._executors.values(), *self._others]
            self._executors.clear()
        for executor in executors:
            executor.shutdown(wait=False)
        for lease in leases:
            lease.shutdown(wait=True)
        self._native.close()

    def _keep(self, executor: Executor) -> None:
        """Registers an executor that must end with this client or process at the latest."""
        with self._lock:
            self._others.add(executor)

    def _forget(self, lease: Lease) -> None:
        with self._lock:
            self._leases.discard(lease)

    def _abandon(self) -> None:
        """Ends the client at process exit. Submitted work runs to its end, as with other executors."""
        if os.getpid() == self._pid:
            is_interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt
            waits = self._native.is_embedded()
            for executor in {*self._executors.values(), *self._others}:
                if is_interrupted and waits:
                    executor._interrupt()
                executor.shutdown(wait=waits)
            for lease in list(self._leases):
                if is_interrupted:
                    lease._interrupt()
                lease.shutdown(wait=True)
            self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<dayfly.Client of {self._native.describe()}>"


#: Seconds to wait until the manager has accepted a task, before its output is read.
_ACCEPTED = 60.0


def _id_of(task: str | Future[Any]) -> str:
    """Returns the id of a task, once the manager has accepted the task."""
    if isinstance(task, str):
        return task
    named = task.id
    if not isinstance(named, str):
        raise TypeError("what calls of a lease print is `Lease.output`; this is for durable tasks")
    tasks: Any = task._pool
    tasks.flush(_ACCEPTED)
    return named


def _ids_of(tasks: str | Future[Any] | Iterable[str | Future[Any]]) -> list[str]:
    from dayfly._future import Future

    some: Iterable[Any] = [tasks] if isinstance(tasks, (str, Future)) else tasks
    return [_id_of(task) for task in some]


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    for client in list(_clients):
        try:
            client._abandon()
        except Exception as error:
            print(f"dayfly: {error}", file=sys.stderr)
