"""Clients: where leases come from."""

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

#: An hour would surprise who leaves a notebook open over lunch; the manager's policy may allow less.
DAY = 86_400.0
#: Slots of a channel's rings and their stride: arguments of up to 2 KiB travel inside a slot, and both rings of a
#: worker fit into a level-2 cache.
SLOTS = 64
STRIDE = 2048
#: Address space for large values, each way and worker.
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

    The manager is the one that the arguments name, else the one that the environment variable ``DAYFLY_MANAGER`` names,
    else the one that ``dayfly up`` left in this user's state directory. If there is none, one is started for this
    process, and ends with it.

    Args:
        url: a manager's address such as ``https://host:7070`` (with ``token`` and ``ca``), or the path of a connection
            file or of the state directory that holds one.
        config: the same path, by name.
        token: bearer token, with an address.
        ca: file with the manager's certificate authority, with an address.
        node: an allowance file (``allowance.json``) of a node, to lease from it without a manager.
        trust: other tenants whose results are unpickled in this process, which runs what they like: their names, or
            True for all. Results of everybody else's functions, and from everybody else's endpoints, are read as data
            alone: plain values, NumPy arrays, Arrow tables; of what holds more, `dayfly.Untrusted` is raised.

    >>> with connect() as client:  # doctest: +SKIP
    ...     client
    <dayfly.Client of embedded manager at https://127.0.0.1:40123>
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
    """The ``dayfly`` program of this package, unless ``DAYFLY_BIN`` names another."""
    named = os.environ.get("DAYFLY_BIN")
    if named:
        return named
    packaged = Path(__file__).parent / "bin" / "dayfly"
    return str(packaged) if packaged.is_file() else None


def module_path() -> list[str]:
    """The directories of this interpreter's module path that another start of it would not know of."""
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
    """What workers must run for this process's functions."""
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


#: Digits of a whole id.
ID_DIGITS = 32


class Client:
    """A connection to a manager. Made by `connect`."""

    def __init__(self, native: _native.Client) -> None:
        self._native = native
        #: Other tenants whose results are unpickled.
        self._trust: Trust = NOBODY
        #: Those who run the workers that it leases, and are not trusted.
        self._foreign: list[str] = []
        self._leases: weakref.WeakSet[Lease] = weakref.WeakSet()
        self._pid = os.getpid()
        # An executor that is made under it registers itself.
        self._lock = threading.RLock()
        self._executors: dict[str | None, Executor] = {}
        #: Names and ids of endpoints that were there.
        self._known_endpoints: set[str] = set()
        #: Those of others, which end with this client at the latest.
        self._others: weakref.WeakSet[Executor] = weakref.WeakSet()
        _clients.add(self)

    @classmethod
    def _own(cls) -> Self:
        """An embedded manager, whatever is configured."""
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
            workers: how many.
            mode: ``hot`` workers poll, each on a core of its own; ``warm`` ones sleep while they wait; ``auto`` is hot
                where there are the cores. The lease says which it got.
            duration: seconds until it ends, from its first use.
            memory: bytes for the whole lease; 0 for the node's usual share.
            cores: cores of each worker; a warm one takes the places of as many.
            gpus: GPUs of each worker, which ``CUDA_VISIBLE_DEVICES`` names there; it sees no others.
            hot_for: seconds that a hot worker polls after a call before it sleeps; None for ever.
            runtime: ``python`` workers call Python functions and shared libraries, ``native`` ones only the latter.
            transport: how calls travel: ``shm``, ``tcp``, ``tls``, ``libfabric`` or ``libfabric:PROVIDER``; by itself
                the best of the first three.
            idle_release: seconds that the lease outlives its last channel, as when this process dies; 0 for as long as
                it lasts.
            node: id of the node to lease from.
            sandbox: ``process`` workers run as the node's own user; ``isolated`` ones see programs, libraries and what
                is named here, and have no privilege, no network and bounded memory; ``container`` ones are the same
                with an image in place of the host's programs and libraries. None for the site's default, or
                ``container`` where an image is named.
            image: what a container is of: a name or path that the site allows, with ``@sha256:...`` behind it to insist
                on that version. It brings Python and whatever functions import, of the client's own minor version.
            environment: what functions import, where that is not what the node's Python has: a list of requirements, a
                requirements or lock file, or a `dayfly.Environment`. The node builds it once; until then there is no
                place (see ``wait``).
            readable: files and directories of the host that isolated workers may read, as far as the site allows.
            writable: those that they may change too.
            wait: seconds to wait for a place when there is none.
            network: whether isolated workers share the host's network, as far as the site allows.
            slots: outstanding calls of one worker; a power of two.
            stride: bytes of a slot; smaller arguments and results travel in it.
            bulk: bytes of address space for larger ones, each way and worker.
            spin: seconds that a waiting thread polls before it sleeps; None for ever, which takes a core.
            depth: calls sent ahead to a worker; 0 to let measured times decide.
            retries: how often a call that was not executed is tried elsewhere.
            echo: whether to show here what workers print, as they do; `Lease.output` has it in any case. A manager that
                this client started writes to this terminal by itself.
        """
        wanted = {name: value for name, value in locals().items() if name != "self"}
        [lease] = self._lease(wanted, None)
        return lease

    def gang(
        self, workers: int, *, placement: Literal["packed", "spread", "together", "fabric"] = "packed", **lease: Any
    ) -> Gang:
        """Leases all of so many workers or none, on one node or several.

        Args:
            workers: how many, on all nodes together.
            placement: ``packed`` on as few nodes as possible, ``spread`` evenly over as many as possible,
                ``together`` on one, ``fabric`` on nodes of one fabric, on as few of them as possible.
            lease: more of `lease`; ``memory`` is that of all workers together.

        Raises:
            dayfly.Error: ``no_capacity`` when they do not all find room now (see ``wait`` of `lease`),
                ``too_large`` when they never will.
        """
        from dayfly._gang import Gang

        bound = inspect.signature(Client.lease).bind(self, workers, **lease)
        bound.apply_defaults()
        wanted = dict(bound.arguments)
        del wanted["self"]
        return Gang(self._lease(wanted, placement))

    def _lease(self, wanted: dict[str, Any], placement: str | None) -> list[Lease]:
        """Leases what the arguments of `lease` say, and opens the channels."""
        from dayfly._lease import Lease

        files = [(path, False) for path in wanted.pop("readable")] + [(path, True) for path in wanted.pop("writable")]
        wanted["files"] = [(os.path.abspath(path), writable) for path, writable in files]
        environment = environment_of(wanted.pop("environment"))
        if environment is not None and wanted["runtime"] != "python":
            raise ValueError("an environment is of Python's packages; lease with runtime='python'")
        wanted["runtime"] = json.dumps(runtime(environment)) if wanted["runtime"] == "python" else ""
        wanted["traceparent"] = traceparent()
        wanted["image"] = None if wanted["image"] is None else os.fspath(wanted["image"])
        # It would be shown twice otherwise.
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
        """Leasing straight from nodes: a client whose leases wait for no manager, which hears of them afterwards.

        For many short leases, and for leases while the manager is away. Nodes that have room are asked in turn.

        Args:
            workers: how many, of all leases at a time together.
            duration: seconds of the longest lease.
            memory: bytes for all of them together; 0 to leave it to the nodes.
            cores: cores of all of them together; 0 for one each.
            workers_per_node: how many on one node at most; 0 for twice an even share.
            sandbox: as of `lease`; all leases under it have the same.
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
        """Has the manager keep a function, to be run by its name or id, also by others. The same one again is the same.

        Args:
            fn: a callable, a `Command`, an `EntryPoint` or a `Symbol`; it is kept as it is now.
            name: functions of one name are versions, of which the last is meant by the name; by default the callable's.
            description: for people; by default its docstring.
            cores: of its worker.
            memory: bytes of its worker; 0 for the node's usual share.
            gpus: of its worker, which sees no others.
            walltime: seconds that one execution may take, after which it is ended with all its processes.
            repeatable: whether it may be executed again when it may have been executed already.
            share: names of tenants that may run it too, ``"team:NAME"`` for a team, ``"*"`` for everyone.
            environment: what it imports, where that is not what the nodes' Python has: a list of requirements, a
                requirements or lock file, or a `dayfly.Environment`. Nodes build it once for the same content.
            image: the container image that it runs in instead, as the site names it.
            ranks: workers that one execution has at once, all of them or none. Each of them calls the function, in
                which ``MPI.COMM_WORLD`` of `dayfly.MPI` connects them, and the result is the list of theirs, by rank.
            placement: on which nodes those are, as of `gang`.
            source: whether it goes as its text, which any version of Python runs, and is called in JSON. It has its
                own ``def``, imports inside what it needs, and leaves its decorators here. What it raises is heard as
                `FunctionError`, with the traceback in its text.

        Raises:
            TypeError: where it is to go as source, and its text is not all of it.
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
        """A registered function: yours by its name, another tenant's as ``"OWNER/NAME"``, in its last version.

        A name alone never means another tenant's: anybody may share a function of any name with everybody.

        Args:
            name: such as ``"resize"`` or ``"ann/resize"``; with ``@ID`` behind it, exactly the version with this id,
                which is the hash of its code and of what that runs in; or the id alone.
            owner: the same as ``OWNER/`` before the name.
            version: the same as ``@ID`` behind the name.
            trust: whose results of it are unpickled, as of `connect`; True for its owner and whoever runs it.

        Raises:
            dayfly.Error: ``not_found`` where there is none: not that version any more, or only others' of that name,
                which the message names.
        """
        from dayfly._tasks import Registered

        named = f"{'' if owner is None else f'{owner}/'}{name}{'' if version is None else f'@{version}'}"
        status = json.loads(self._native.get(f"/v1/functions/{quote(named, safe='')}"))
        return Registered(status, trust=trust_of(trust))

    def functions(self) -> list[Registered]:
        """The functions that you may run, with their owners."""
        from dayfly._tasks import Registered

        return [Registered(status) for status in json.loads(self._native.get("/v1/functions"))]

    def share(self, function: Registered | str, share: Iterable[str]) -> Registered:
        """Says who may run a function of yours from now on, instead of those who may so far. Accepted tasks go on.

        Args:
            function: by its name, for all its versions; or one version, also by its id.
            share: as of `register`; none for nobody but you.
        """
        from dayfly._tasks import Registered

        name = function.id if isinstance(function, Registered) else function
        spec = json.dumps({"shared_with": [share] if isinstance(share, str) else list(share)})
        return Registered(json.loads(self._native.put(f"/v1/functions/{quote(name, safe='')}/sharing", spec)))

    def remove_function(self, function: Registered | str) -> list[Registered]:
        """Forgets a function of yours, once no task, flow or trigger uses it; answers what is gone. Outcomes stay.

        Args:
            function: by its name, for all its versions; or one version, also by its id.
        """
        from dayfly._tasks import Registered

        name = function.id if isinstance(function, Registered) else function
        gone = json.loads(self._native.delete(f"/v1/functions/{quote(name, safe='')}"))
        return [Registered(status) for status in gone]

    def run(self, fn: Callable[..., Any] | Registered, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submits a durable task and answers its future: it runs whether or not this process goes on."""
        return self._executor().submit(fn, *args, **kwargs)

    def batch(self, /, tag: str | None = None, *, extend: bool = False, **options: Any) -> Batch:
        """Durable tasks that belong together: ``with client.batch() as batch: batch.submit(f, x)``.

        Args:
            tag: by which they are found again; random by default.
            extend: whether there may be tasks of this tag already, to which these are added.
            options: as of `Executor`.

        Raises:
            dayfly.TagInUse: if there are tasks of this tag, and ``extend`` does not allow that.
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
        """A durable task for every item. When it returns, the manager has all of them on its disk.

        Args:
            fn: the function; it takes as many arguments as there are iterables.
            iterables: where the arguments come from.
            tag: by which they are found again; random by default.
            extend: whether there may be tasks of this tag already, to which these are added.
            options: as of `Executor`.

        Raises:
            dayfly.TagInUse: if there are tasks of this tag, as of a script that is run again, and ``extend`` does not
                allow that.
        """
        batch = self.batch(tag, extend=extend, **options)
        batch.extend(fn, *iterables)
        batch.flush(timeout=3600.0)
        batch._raise_refused()
        return batch

    def tasks(self, tag: str, *, trust: TrustLike = None) -> Batch:
        """The tasks of a tag, wherever and whenever they were submitted: after a crash, or from another machine.

        Args:
            tag: of theirs.
            trust: whose results are unpickled, as of `connect`.
        """
        from dayfly._batch import statuses

        batch = self.batch(tag, extend=True, trust=trust)
        executor = batch._executor
        batch.futures = executor._adopt(statuses(self, tag))
        return batch

    def task(self, task: str, *, trust: TrustLike = None) -> Future[Any]:
        """One task, by its id, or by six digits or more of its beginning or end that no other of yours has.

        Args:
            task: its id, or a beginning or end of it.
            trust: whose results are unpickled, as of `connect`.
        """
        status = self.task_status(task)
        [future] = self._executor(status["tag"])._adopt([status])
        future._trust = trust_of(trust)
        return future

    def task_status(self, task: str | Future[Any]) -> dict[str, Any]:
        """Where a task is in its life, and since when, by its id or its future; see the API's ``TaskStatus``."""
        status: dict[str, Any] = json.loads(self._native.get(f"/v1/tasks/{_id_of(task)}"))
        return status

    def _whole(self, task: str | Future[Any]) -> str:
        """The id of a task that is named by its future, its id, or a beginning or end of that."""
        given = _id_of(task)
        return given if len(given) == ID_DIGITS else str(self.task_status(given)["id"])

    def cancel(self, tasks: str | Future[Any] | Iterable[str | Future[Any]]) -> dict[str, int]:
        """Cancels those tasks that no worker has been given. How many never begin (``ended``), and how many run on
        (``running``). See `kill`.

        Args:
            tasks: one or several, by their ids, or their futures. All of a tag: `Batch.cancel`.
        """
        return self._end_tasks({"tasks": [self._whole(task) for task in _ids_of(tasks)], "only_waiting": True})

    def kill(self, tasks: str | Future[Any] | Iterable[str | Future[Any]]) -> dict[str, int]:
        """Ends tasks, also those that run. How many never begin (``ended``), and how many are being ended (``told``).

        Args:
            tasks: one or several, by their ids, or their futures. All of a tag: `Batch.kill`.
        """
        return self._end_tasks({"tasks": [self._whole(task) for task in _ids_of(tasks)]})

    def _end_tasks(self, which: dict[str, Any]) -> dict[str, int]:
        ended: dict[str, int] = json.loads(self._native.post("/v1/tasks/cancel", json.dumps(which)))
        return ended

    def forget(self, tasks: Iterable[str | Future[Any]] = (), *, tag: str | None = None) -> dict[str, int]:
        """Forgets tasks that have ended, with their results, before their time. How many, and how many were left alone.

        Args:
            tasks: by their ids, or their futures. Those that have not ended, or that others wait for, are left alone.
            tag: all with this tag.
        """
        spec = json.dumps({"tasks": [self._whole(task) for task in tasks], "tag": tag})
        forgotten: dict[str, int] = json.loads(self._native.post("/v1/tasks/forget", spec))
        return forgotten

    def output(self, task: str | Future[Any], stream: Literal["out", "err"] | None = None) -> str:
        """What a durable task has printed so far: the last 64 KiB, kept with its outcome.

        Args:
            task: its id, or its future.
            stream: ``out`` or ``err`` for standard output or error alone.
        """
        from dayfly._output import of_task

        return "".join(text for _, text in of_task(self._native, _id_of(task), stream, follow=False))

    def follow(
        self, task: str | Future[Any], stream: Literal["out", "err"] | None = None
    ) -> Iterator[tuple[Literal["out", "err"], str]]:
        """What a durable task prints, as it does, until it has ended: where, and what. See `output`."""
        from dayfly._output import of_task

        return of_task(self._native, _id_of(task), stream, follow=True)

    # The same for asyncio

    aregister = twin(register)
    amap = twin(map)
    atask = twin(task)
    atasks = twin(tasks)
    acancel = twin(cancel)
    akill = twin(kill)

    async def arun(self, fn: Callable[..., Any] | Registered, /, *args: Any, **kwargs: Any) -> Any:
        """Submits a durable task and awaits its result. Where the wait is cancelled, so is the task."""
        return await submitted(lambda: self.run(fn, *args, **kwargs))

    @contextlib.asynccontextmanager
    async def abatch(self, tag: str | None = None, *, extend: bool = False, **options: Any) -> AsyncIterator[Batch]:
        """As `batch`, for ``async with``, at whose end the manager has all tasks."""
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

    # Where, and what starts them

    def endpoints(self) -> list[dict[str, Any]]:
        """Where tasks can run, and how much they have to do."""
        endpoints: list[dict[str, Any]] = json.loads(self._native.get("/v1/endpoints"))
        return endpoints

    def _check_endpoint(self, name: str) -> None:
        """Refuses the name of an endpoint that is not there.

        Raises:
            dayfly.RequestError: ``not_found``, with the names of those there are.
        """
        if name in self._known_endpoints:
            return
        try:
            known = self.endpoints()
        except ConnectionFailed:
            # What is submitted waits for the manager, which then refuses it.
            return
        # The list is long to make where there are many tasks.
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
        """Refuses a tag that tasks have already."""
        try:
            counts = json.loads(self._native.get(f"/v1/tasks/counts?tag={quote(tag, safe='')}"))
        except ConnectionFailed:
            # What is submitted waits for the manager.
            return
        count = sum(counts[state] for state in ("queued", "waiting", "environment", "running", "done"))
        if count:
            raise TagInUse(
                f"the tag {tag!r} has {count:,} tasks already, {counts['done']:,} of them done: client.tasks({tag!r}) "
                "has them. Add extend=True to submit more tasks with this tag, or take another",
                "invalid_request",
            )

    def remove_endpoint(self, name: str) -> dict[str, Any]:
        """Forgets an endpoint of yours; answers how it was. Its tasks end.

        Args:
            name: as `endpoints` has it.
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
        """Has a function started by the clock (``timer``), by files (``files``) or by requests (``webhook``).

        What happens becomes a task at least once, whether or not this process goes on. The function's only argument by
        place is the event, a dictionary; its tasks have the tag ``trigger:NAME``. A trigger that is made again under
        its name is changed, and has another token.

        Args:
            name: among your triggers.
            fn: a callable, which is registered; what `register` answered; or a registered function, named as for
                `function`.
            timer: when, in cron syntax: minute, hour, day of month, month, day of week; seconds may stand before them.
            zone: the time zone of that, such as ``Europe/Berlin``.
            catch_up: whether the last of the times that passed while the manager was away is made up for.
            files: a directory, or ``s3://bucket/prefix``, whose files or objects count; such as ``/data/in/*.tif`` for
                those that fit a pattern.
            pattern: the same apart: paths below that directory, such as ``*.tif``, or ``**/*.tif`` for those in
                directories below, too.
            existing: whether those count that are there already.
            every: seconds between two looks; by default one in a directory and ten in a bucket.
            watched_at: the endpoint that looks, which must be yours; by default the one where the tasks run.
            webhook: whether it waits for requests, to the address that the answer has as ``url``.
            endpoint: where its tasks run, as of `Executor`.
            keywords: arguments by name that go along with each event, as JSON can express them.
            then: what is called with its result: further steps of a flow, of which it is the first, named ``event``.
            valid_for: seconds that it is good for; by default as long as this client's token, which it cannot outlive.
            priority: of its tasks, as of `Executor`.
            deadline: seconds until a task's end, as of `Executor`.
            retries: how often a task is executed again when the function raises.
            retry_wait: seconds before the first of these; before each further one, twice as long.
            walltime: seconds that one execution may take; by default what the function says.
            repeatable: whether a task may be executed again when it may have been executed already; by default what the
                function says.
            description: for people.
            paused: whether it starts nothing until it is resumed.
        """
        about = {name: value for name, value in locals().items() if name != "self"}
        from dayfly._trigger import make

        return make(self, **about)

    def triggers(self) -> list[Trigger]:
        """Your triggers."""
        from dayfly._trigger import Trigger

        return [Trigger(self, status) for status in json.loads(self._native.get("/v1/triggers"))]

    def flow(self, steps: Iterable[Step], input: Any = None, *, name: str = "") -> Flow:
        """Has functions called with each other's results, as tasks, whether or not this process goes on.

        What steps are called with, and answer, goes through JSON. Their tasks have the tag ``flow:ID``.

        Args:
            steps: in an order in which each stands behind those whose results it takes; see `dayfly.Step`.
            input: what it begins with, as JSON can express it.
            name: for people.
        """
        from dayfly._flow import start

        return start(self, steps, input, name)

    def flows(self, limit: int = 100) -> list[Flow]:
        """Your flows, the latest first.

        Args:
            limit: so many at most.
        """
        from dayfly._flow import Flow

        return [Flow(self, status) for status in json.loads(self._native.get(f"/v1/flows?limit={limit}"))]

    def find_flow(self, flow: str) -> Flow:
        """One flow, by its id: after a crash, or from another machine."""
        from dayfly._flow import Flow

        return Flow(self, json.loads(self._native.get(f"/v1/flows/{quote(flow, safe='')}")))

    def team(self, name: str, members: Iterable[str], *, description: str = "") -> dict[str, Any]:
        """Makes a team, or changes yours: tenants that functions are shared with as ``team:NAME``, as by `register`.

        Args:
            name: among everybody's teams.
            members: names of tenants.
            description: for people.
        """
        spec = json.dumps({"members": list(members), "description": description})
        team: dict[str, Any] = json.loads(self._native.put(f"/v1/teams/{quote(name, safe='')}", spec))
        return team

    def teams(self) -> list[dict[str, Any]]:
        """The teams that are yours, and those that you are in."""
        teams: list[dict[str, Any]] = json.loads(self._native.get("/v1/teams"))
        return teams

    def remove_team(self, name: str) -> dict[str, Any]:
        """Forgets a team of yours; answers how it was. What is shared with it is shared with nobody in it any more."""
        team: dict[str, Any] = json.loads(self._native.delete(f"/v1/teams/{quote(name, safe='')}"))
        return team

    def usage(self, *, everybody: bool = False) -> list[dict[str, Any]]:
        """What your durable tasks took, by day, function and endpoint; see the API's ``UsageLine``.

        Args:
            everybody: those of all tenants, for operators.
        """
        lines: list[dict[str, Any]] = json.loads(self._native.get(f"/v1/usage?everybody={str(everybody).lower()}"))
        return lines

    def _executor(self, tag: str | None = None) -> Executor:
        """The executor for tasks of this tag, or for those without one of their own."""
        from dayfly._tasks import Executor

        with self._lock:
            made = self._executors.get(tag)
            if made is None:
                made = self._executors[tag] = Executor(client=self, tag=tag)
        return made

    def rendezvous(self) -> dict[str, str]:
        """Where the ranks of groups meet: ``address`` (``host:port``) and its ``key``."""
        place: dict[str, str] = json.loads(self._native.get("/v1/rendezvous"))
        return place

    def nodes(self) -> list[dict[str, Any]]:
        """The manager's nodes."""
        nodes: list[dict[str, Any]] = json.loads(self._native.get("/v1/nodes"))
        return nodes

    def leases(self) -> list[dict[str, Any]]:
        """The manager's leases."""
        leases: list[dict[str, Any]] = json.loads(self._native.get("/v1/leases"))
        return leases

    def close(self) -> None:
        """Shuts this client's leases down, and with them an embedded manager."""
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
        """An executor that ends with this client, or its process, at the latest."""
        with self._lock:
            self._others.add(executor)

    def _forget(self, lease: Lease) -> None:
        with self._lock:
            self._leases.discard(lease)

    def _abandon(self) -> None:
        """At the end of the process: what was submitted runs to its end, as with other executors."""
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


#: Seconds that the manager may take to accept a task whose output is asked for.
_ACCEPTED = 60.0


def _id_of(task: str | Future[Any]) -> str:
    """The id of a task that the manager knows."""
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
