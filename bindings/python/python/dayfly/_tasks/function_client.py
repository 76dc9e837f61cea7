"""The requests of a client for registered functions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from dayfly import _native
from dayfly._codec.trust import TrustLike, trust_of
from dayfly._connection import Connection
from dayfly._functions.environment import EnvironmentLike, environment_of
from dayfly._futures.coroutines import async_variant
from dayfly._leases.defaults import Borrow, Placement

if TYPE_CHECKING:
    from dayfly._tasks.executor import Executor
    from dayfly._tasks.registered import Registered
    from dayfly._tasks.sizes import SizeLike


class FunctionClient(Connection):
    """The part of `Client` that registers functions."""

    def __init__(self, native: _native.Client) -> None:
        super().__init__(native)
        #: Executors for tasks of a tag, or, for None, the one with a tag of its own.
        self._by_tag: dict[str | None, Executor] = {}

    def register(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        cores: float = 1,
        memory: int = 0,
        gpus: int = 0,
        lend: bool = True,
        borrow: Borrow = "cpu",
        walltime: float | None = None,
        repeatable: bool = False,
        share: Iterable[str] = (),
        environment: EnvironmentLike = None,
        image: str | None = None,
        ranks: int = 0,
        placement: Placement | None = None,
        source: bool = False,
        size: SizeLike = None,
    ) -> Registered:
        """Registers a function with the manager, so that you and other tenants can run it by name or id.

        Idempotent: registering the same function again returns the existing one.

        Args:
            fn: a callable, a `Command`, an `EntryPoint` or a `Symbol`. The manager keeps its present state.
            name: name of the function; by default the callable's. Functions of one name are versions, and the name
                means the last one.
            description: description for people; by default the docstring.
            cores: cores of the worker that runs it, at least 0.01; ``0.5`` is half a core.
            memory: bytes of memory of the worker; 0 for the node's default share.
            gpus: GPUs of the worker, which sees no others.
            lend: whether its executions lend cores and memory that they do not use, as for `lease`.
            borrow: what its executions may borrow, as for `lease`.
            walltime: maximum seconds of one execution. The execution is then killed with all its processes.
            repeatable: whether a task may be executed again if it may have been executed already.
            share: names of tenants that may also run it, ``"team:NAME"`` for a team, ``"*"`` for all tenants.
            environment: packages that the function imports and the nodes' Python lacks: a list of requirements, a
                requirements or lock file, or a `dayfly.Environment`. Nodes build it once for the same content.
            image: container image to run in, by the name that the site gives it.
            ranks: number of workers that one execution has at the same time, all or none. Each worker calls the
                function, where ``MPI.COMM_WORLD`` of ``dayfly.MPI`` connects them. The result is the list of the ranks'
                results.
            placement: placement of the ranks on nodes, as for `gang`.
            source: whether to send the function as source text, which any version of Python runs, with arguments and
                results in JSON. The function needs a ``def`` of its own, imports what it needs inside its body, and
                loses its decorators. An exception that it raises arrives as `FunctionError`, with the traceback in
                its message.
            size: what nodes that harvest predict a task by, beside the bytes of its arguments: a function of the
                arguments that returns a number or up to four, such as ``lambda image: image.shape``; or names of
                parameters. It is called in this process when a task is submitted by the returned object. By default,
                the first four arguments that are numbers, or have a length or ``nbytes``, count.

        Returns:
            The registered function.

        Raises:
            ValueError: if ``size`` names a parameter that the function does not have, or ``fn`` is no pickled function.
            TypeError: if ``source`` is True and the source text is not complete without its surroundings.
            dayfly.Error: if the manager refuses the function or cannot be reached.
        """
        from dayfly._functions.kinds import FunctionKind
        from dayfly._tasks.registered import Registered, register
        from dayfly._tasks.sizes import sizer_of

        if size is not None and (source or isinstance(fn, FunctionKind)):
            raise ValueError("size= needs a function that is sent as a pickle; leave it out")
        sizer = sizer_of(size, fn)
        status = register(
            self._executor()._pool,
            fn,
            name=name if name is not None else getattr(fn, "__name__", None),
            description=description,
            cores=cores,
            memory=memory,
            gpus=gpus,
            lend=lend,
            borrow=borrow,
            walltime=walltime,
            repeatable=repeatable,
            share=share,
            environment=environment_of(environment),
            image=image,
            ranks=ranks,
            placement=placement,
            source=source,
        )
        return Registered(status, fn, sizer=sizer)

    aregister = async_variant(register)

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
        from dayfly._tasks.registered import Registered

        named = f"{'' if owner is None else f'{owner}/'}{name}{'' if version is None else f'@{version}'}"
        status = json.loads(self._native.get(f"/v1/functions/{quote(named, safe='')}"))
        return Registered(status, trust=trust_of(trust))

    def functions(self) -> list[Registered]:
        """Returns the functions that you may run, with their owners."""
        from dayfly._tasks.registered import Registered

        return [Registered(status) for status in json.loads(self._native.get("/v1/functions"))]

    def profile(
        self,
        function: Registered | str,
        *,
        tenant: str | None = None,
        sample: tuple[Any, ...] | None = None,
        sizes: int = 20,
        times: int = 2,
        timeout: float | None = None,
    ) -> list[dict[str, Any]]:
        """Returns what nodes learnt about your calls of a function, and why it lends idle resources or does not.

        Each node that harvests (``--harvest watch`` or ``on``) learns from its own long calls, so there is one
        dictionary for each node and each function of this name.

        Args:
            function: a registered function, its name or id; or the name of any function that you call, such as
                ``"resize"`` or ``"images.resize"``. ``NAME@HASH`` selects one version by its code.
            tenant: the tenant whose calls count, for operators. Default: you.
            sample: arguments of the registered function, which then first runs as tasks of yours, at your cost, on
                inputs that are made from them. It must be registered as repeatable.
            sizes: number of inputs. Their sizes are evenly spaced: content of the sample is cut or repeated, and
                numbers are scaled.
            times: size of the largest input, in multiples of the sample.
            timeout: seconds until all runs must have ended; None for no limit.

        Returns:
            Dictionaries with ``node_name``, ``mode``, ``function``, ``samples``, ``samples_needed``, ``model``,
            ``scores`` (after the models were compared), ``owned``, ``high``, ``lends`` (``milli_cores`` and
            ``memory_bytes``) and ``reason``, a sentence.

        Raises:
            dayfly.Error: ``not_found`` if no node measures calls, or none has learnt from a call of this function.
            ValueError: if the function of a sample is not repeatable.
            TimeoutError: if the runs have not ended in time.

        Example:
            >>> for learnt in client.profile("resize"):  # doctest: +SKIP
            ...     print(learnt["node_name"], learnt["model"], learnt["samples"], learnt["reason"])
        """
        if sample is not None:
            from dayfly._tasks import duplicator

            registered = self.function(function) if isinstance(function, str) else function
            duplicator.check(registered, sizes, times)
            executor = self._executor(f"profile:{registered.id}")
            duplicator.run(executor, registered, duplicator.inputs(sample, sizes, times), timeout)
        name = function if isinstance(function, str) else function.id
        query = "" if tenant is None else f"?tenant={quote(tenant, safe='')}"
        found: list[dict[str, Any]] = json.loads(
            self._native.get(f"/v1/functions/{quote(name, safe='')}/profile{query}")
        )
        return found

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
        from dayfly._tasks.registered import Registered

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
        from dayfly._tasks.registered import Registered

        name = function.id if isinstance(function, Registered) else function
        gone = json.loads(self._native.delete(f"/v1/functions/{quote(name, safe='')}"))
        return [Registered(status) for status in gone]

    def _executor(self, tag: str | None = None) -> Executor:
        """Returns the executor for tasks of this tag, or, for None, the one with a tag of its own."""
        from dayfly._tasks.executor import Executor

        with self._lock:
            made = self._by_tag.get(tag)
            if made is None:
                made = self._by_tag[tag] = Executor(client=self, tag=tag)
        return made

    def close(self) -> None:
        """Shuts down this client's executors and leases, and its manager if that is embedded."""
        # They stay until they are shut down.
        executors = list(self._by_tag.values())
        if os.getpid() == self._pid:
            with self._lock:
                self._by_tag.clear()
        super().close()
        del executors
